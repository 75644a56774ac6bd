"""quipu.compat beside the calls that it stands for."""

from pathlib import Path

from quipu.compat import LLM, SamplingParams

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")


def test_prompts_are_answered_in_their_order():
    llm = LLM(TEXT, context=128, max_sessions=4)
    params = SamplingParams(temperature=1.2, max_tokens=6, seed=3, n=2, ignore_eos=True, logprobs=2)
    outputs = llm.generate(["the cat", "a dog", "on"], params)
    for prompt, output in zip(["the cat", "a dog", "on"], outputs):
        assert output.prompt == prompt and output.prompt_token_ids == llm.model.tokenize(prompt)
        for i, choice in enumerate(output.outputs):
            alone = llm.model.generate(prompt, temperature=1.2, top_p=1, top_k=0, min_p=0, seed=3 + i, max_tokens=6,
                                       stop_tokens=(), repetition_penalty=1)
            assert (choice.text, choice.token_ids, choice.finish_reason) == (alone.text(), alone.tokens, "length")
            assert len(choice.logprobs) == 6 and all(len(top) in (2, 3) for top in choice.logprobs)
    assert llm.generate([[1, 5, 6]], params)[0].prompt_token_ids == [1, 5, 6]
    assert len(llm.generate("the cat")[0].outputs[0].token_ids) <= 16
    llm.model.close()


def test_conversations():
    llm = LLM(str(Path(TEXT).parent / "llama-text"), context=128)
    conversation = [{"role": "user", "content": "the cat"}]
    params = SamplingParams(temperature=0, max_tokens=3)
    one, two = llm.chat([conversation, conversation], params)
    assert one.outputs == two.outputs == llm.chat(conversation, params)[0].outputs
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    offered = llm.chat(conversation, params, tools=[tool], chat_template_kwargs={"enable_thinking": False})[0]
    assert offered.prompt_token_ids == llm.model.vocabulary.tokenize_chat(conversation, tools=[tool], enable_thinking=False)
    llm.model.close()
