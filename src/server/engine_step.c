/* One call of qp_step() for the running choices. */
#include "server/batcher_state.h"

#include "base/clock.h"
#include "server/logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_TIMED = 8,  /* tokens of prompts; a step with fewer is not measured */
    FEW_ROWS = 256,   /* a GPU takes hardly longer for these than for fewer */
    LEAST_ROWS = 128, /* of prompts */
    WHOLE_ROWS = 256, /* rows that a GPU multiplies at a time */
};

/* ---- results of a step --------------------------------------------------------------------- */

static bool ends_choice(const request *r, int32_t token)
{
    for (size_t i = 0; !r->ignore_eos && i < r->sampling.n_stop_tokens; i++)
        if (r->sampling.stop_tokens[i] == token) return true;
    return false;
}

static qp_status stop(choice *c, uint8_t finish, int32_t token)
{
    c->stopped = true;
    c->finish = finish;
    c->stop_token = token;
    return QP_CANCELLED;
}

static void push_token(choice *c, int32_t token, size_t vocab_size)
{
    const int wanted = c->request->top_logprobs;
    token_event event = {.token = token};
    if (wanted >= 0 && c->row) {
        token_top *top = choice_next_top(c);
        const double sum = logprobs_sum(c->row, vocab_size);
        event.logprob = logprob_of(c->row, sum, token);
        event.n_top = (uint32_t)logprobs_top(c->row, vocab_size, sum, (size_t)wanted, top);
        event.top = top;
    }
    choice_push(c, event);
}

static void note_token(batcher *b, choice *c)
{
    request *r = c->request;
    const uint64_t now = clock_ns();
    b->stats.generated_tokens++;
    if (c->last_token) histogram_add(&b->stats.next_token, (double)(now - c->last_token) * 1e-9);
    c->last_token = now;
    if (r->first_token) return;
    r->first_token = now;
    b->stats.last_first_token = (double)(now - r->arrived) * 1e-9;
    histogram_add(&b->stats.first_token, b->stats.last_first_token);
}

/* It is left out if the client is far behind: events of tokens need the room more. */
void batcher_note_progress(batcher *b, choice *c, size_t read)
{
    request *r = c->request;
    const bool fresh = c->n_pushed == 0 && !c->preempted;
    if (!r->progress || c->index > 0 || !fresh || choice_room(c) < RING_EVENTS / 2) return;
    choice_push(c, (token_event){.token = (int32_t)read, .reading = true});
    batcher_note(b, r);
}

static qp_status on_token(void *context, int32_t token)
{
    choice *c = context;
    request *r = c->request;
    batcher *b = r->state->batcher;
    if (c->count == r->n_prompt) batcher_note_progress(b, c, r->n_prompt);
    if (ends_choice(r, token)) {
        if (!thought_end(&c->thought, &r->thoughts)) return stop(c, QP_FINISH_STOP_TOKEN, token);
        token = thought_forced(&c->thought, &r->thoughts);
    }
    const bool formed = c->form && thought_is_over(&c->thought),
               turns = thought_take(&c->thought, &r->thoughts, token);
    if (formed && !turns) masks_take(c->form, token);
    c->tokens[c->count++] = token;
    if (c->count > c->n_pushed) { /* else it is made again after a preemption */
        c->n_pushed = c->count;
        note_token(b, c);
        push_token(c, token, (size_t)b->info.vocab_size);
        batcher_note(b, r);
    }
    if (c->count == c->capacity) {
        const bool length = r->max_tokens && c->count - r->n_prompt == r->max_tokens;
        return stop(c, length ? QP_FINISH_LENGTH : QP_FINISH_CONTEXT, -1);
    }
    return choice_room(c) > 0 && !turns && !atomic_load(&c->cancelled) ? QP_OK : QP_CANCELLED;
}

/* Receives the logits after new token `token` of the call. */
static qp_status on_logits(void *context, size_t token, const float *row)
{
    choice *c = context;
    const request *r = c->request;
    const batcher *b = r->state->batcher;
    const size_t next = c->held + token + 1, vocab_size = (size_t)b->info.vocab_size;
    c->row = row;
    if (!r->prompt_logprobs || c->index > 0 || next >= r->n_prompt) return QP_OK;
    const double sum = logprobs_sum(row, vocab_size);
    r->prompt_logprob[next] = logprob_of(row, sum, r->prompt[next]);
    if (r->prompt_top)
        logprobs_top(row, vocab_size, sum, (size_t)r->top_logprobs,
                     r->prompt_top + next * (size_t)r->top_logprobs);
    return QP_OK;
}

static qp_status on_hidden(void *context, size_t token, const float *hidden)
{
    choice *c = context;
    const batcher *b = c->request->state->batcher;
    (void)token;
    for (int64_t i = 0; i < b->engine->program.config.hidden_size; i++)
        c->hidden_sum[i] = hidden[i] + (c->request->embed_last ? 0 : c->hidden_sum[i]);
    return QP_OK;
}

/* Ends a choice that only reads its prompt, once the prompt is read. */
static void end_read_only(const batcher *b, choice *c)
{
    request *r = c->request;
    if (!(r->prompt_only || r->embed) || c->session->count < c->count) return;
    stop(c, QP_FINISH_LENGTH, -1);
    const double count = r->embed_last ? 1 : (double)c->count;
    for (int64_t i = 0; r->embed && i < b->engine->program.config.hidden_size; i++)
        r->embedding[i] = (float)(c->hidden_sum[i] / count);
}

/* ---- input of a step ----------------------------------------------------------------------- */

static qp_status open_sampler(batcher *b, choice *c, qp_error *error)
{
    qp_sampling sampling = c->request->sampling;
    if (c->sampler) return QP_OK;
    sampling.value[QP_SEED] += (double)c->index;
    if (c->request->ignore_eos) sampling.n_stop_tokens = 0;
    thought_begin(&c->thought, &c->request->thoughts);
    c->bound = false;
    TRY(qp_sampler_open(b->engine, &sampling, &c->sampler, error));
    if (!sampling.grammar) return QP_OK;
    return masks_begin(b->masks, sampling.grammar, sampling.stop_tokens, sampling.n_stop_tokens,
                       (size_t)b->info.vocab_size, &c->form, error);
}

/* Allows only a token, or the tokens of a mask (NULL: all) and one more, if it is not negative. */
static qp_status allow(const batcher *b, choice *c, const uint32_t *allowed, int32_t token,
                       qp_error *error)
{
    const size_t words = ((size_t)b->info.vocab_size + 31) / 32;
    c->bound = allowed || token >= 0;
    if (token < 0) return qp_sampler_allow(c->sampler, allowed, error);
    uint32_t *mask = calloc(words, sizeof *mask);
    if (!mask) return error_no_memory(error, "a mask", words * sizeof *mask);
    if (allowed) memcpy(mask, allowed, words * sizeof *mask);
    mask[token / 32] |= UINT32_C(1) << token % 32;
    const qp_status status = qp_sampler_allow(c->sampler, mask, error);
    free(mask);
    return status;
}

/* The next token is one of those with which a thought is ended, or the answer's form goes on.
 * `*waits`: its mask is not yet made. */
static qp_status bind(const batcher *b, choice *c, bool *waits, qp_error *error)
{
    const uint32_t *allowed;
    const thought_rules *rules = &c->request->thoughts;
    const int32_t forced = thought_forced(&c->thought, rules);
    if (forced >= 0) return allow(b, c, NULL, forced, error);
    if (!c->form || !thought_is_over(&c->thought))
        return c->bound ? allow(b, c, NULL, -1, error) : QP_OK;
    TRY(masks_get(c->form, &allowed, error));
    *waits = !allowed;
    return *waits ? QP_OK : allow(b, c, allowed, thought_opening(&c->thought, rules), error);
}

/* How many tokens must still be chosen before a stop token may be. */
static size_t tokens_to_min(const choice *c)
{
    const request *r = c->request;
    const size_t made = c->count - r->n_prompt;
    if (r->ignore_eos || r->sampling.n_stop_tokens == 0 || made >= r->min_tokens) return 0;
    return r->min_tokens - made;
}

/* Gives stop tokens a bias of minus infinity while the choice has fewer than min_tokens. Biases
 * change only once, so a GPU can make the tokens before and after in groups of passes. */
static qp_status exclude_stops(batcher *b, choice *c, qp_error *error)
{
    const qp_sampling *sampling = &c->request->sampling;
    const bool excluded = tokens_to_min(c) > 0;
    if (excluded == c->stops_excluded) return QP_OK;
    size_t n = sampling->n_logit_bias;
    qp_logit_bias *biases = malloc((n + QP_MAX_STOP_TOKENS) * sizeof *biases);
    if (!biases) return error_no_memory(error, "the biases", n * sizeof *biases);
    if (n) memcpy(biases, sampling->logit_bias, n * sizeof *biases);
    for (size_t i = 0; excluded && i < sampling->n_stop_tokens; i++)
        biases[n++] = (qp_logit_bias){sampling->stop_tokens[i], -INFINITY};
    const qp_status status = sampler_set_biases(b->engine, c->sampler, biases, n, error);
    free(biases);
    c->stops_excluded = excluded;
    return status;
}

/* Whether the choice has read its prompt and generates tokens. */
static bool decodes(const choice *c)
{
    return c->session->count + 1 == c->count && c->sampler && c->sampler->begun;
}

/* How many of the running choices decode, how many read prompts, and how many tokens those have
 * still to read. */
typedef struct kinds {
    size_t decode, prompt, unread;
} kinds;

/* Whether the choice would decode, but its mask is being made. */
static bool waits_for_mask(const choice *c)
{
    const uint32_t *mask;
    qp_error why;
    if (!c->form || !decodes(c) || !thought_is_over(&c->thought)) return false;
    return masks_get(c->form, &mask, &why) == QP_OK && !mask;
}

static kinds count_kinds(const batcher *b)
{
    kinds k = {0};
    for (size_t i = 0; i < b->running.count; i++) {
        const choice *c = b->running.items[i];
        if (c->stopped || waits_for_mask(c)) continue;
        k.decode += decodes(c);
        k.prompt += !decodes(c);
        if (!decodes(c)) k.unread += c->count - c->session->count;
    }
    return k;
}

/* Passes of fixed shapes read either prompts or decode, so the two take turns. */
static bool decodes_alone(const batcher *b, kinds k)
{
    return batcher_is_invariant(b) && k.decode > 0 && k.prompt > 0 && b->read_prompts;
}

static bool is_on_gpu(const batcher *b)
{
    return b->engine->device.context != NULL;
}

/* How many tokens of prompts add about so long to a pass in which others decode. */
static size_t tokens_in(const batcher *b, double ns)
{
    const size_t most = (size_t)b->info.chunk;
    size_t least = is_on_gpu(b) ? FEW_ROWS : (size_t)b->engine->pages.page_size;
    if (least > most) least = most;
    if (b->token_ns <= 0) return least;
    const double tokens = ns / b->token_ns;
    return tokens > (double)most ? most : tokens < (double)least ? least : (size_t)tokens;
}

/* Changes the number of tokens so that the pass has a number of rows that a GPU likes: other
 * numbers take up to a sixth more time a row. */
static size_t whole_rows(const batcher *b, kinds k, size_t tokens)
{
    const size_t most = (size_t)b->info.chunk;
    if (!is_on_gpu(b)) return tokens;
    size_t rows = (k.decode + tokens + WHOLE_ROWS / 2) / WHOLE_ROWS * WHOLE_ROWS;
    if (rows > most) rows = most;
    return rows >= k.decode + LEAST_ROWS ? rows - k.decode : tokens;
}

/* Tokens of prompts that the step may read. A pass reads the weights once for its tokens of prompts
 * and for those that decode, but clients see how long it takes. */
static size_t prompt_budget(const batcher *b, kinds k)
{
    if (k.decode == 0 || batcher_is_invariant(b)) return (size_t)b->info.chunk;
    const double passes_ns = b->options.prompt_passes * b->pass_ns;
    return whole_rows(b, k, tokens_in(b, passes_ns + (double)b->options.prompt_ns));
}

/* How many passes may run before tokens are handed out. */
static size_t passes_at_a_time(const batcher *b)
{
    const double n = b->pass_ns > 0 ? (double)b->options.group_ns / b->pass_ns : 1;
    return n < 1 ? 1 : n > STEP_MAX_PASSES ? STEP_MAX_PASSES : (size_t)n;
}

/* Adds the choice to the step with all tokens that it has to read, or with as much of a prompt as
 * *budget allows. */
static qp_status add_sequence(batcher *b, choice *c, size_t *budget, qp_error *error)
{
    const request *r = c->request;
    const bool echo = r->prompt_logprobs && c->index == 0;
    const size_t room = choice_room(c), left = c->capacity - c->count, held_back = tokens_to_min(c);
    const size_t held = c->session->count;
    size_t count = c->count - held;
    TRY(open_sampler(b, c, error));
    TRY(exclude_stops(b, c, error));
    const size_t thoughts = thought_left(&c->thought, &r->thoughts);
    const bool prompt = !decodes(c);
    if (prompt && count > *budget) count = *budget;
    if (count == 0 || room == 0) return QP_OK;
    const bool ends = held + count == c->count, chooses = ends && !r->prompt_only && !r->embed;
    bool waits = false;
    if (chooses) TRY(bind(b, c, &waits, error));
    if (waits) return QP_OK;
    if (prompt) *budget -= count;
    size_t most = left < room ? left : room;
    if (thoughts < most) most = thoughts;
    c->row = NULL;
    c->held = held;
    b->called[b->n_called] = c;
    b->sequences[b->n_called++] =
        (qp_sequence){.size = sizeof(qp_sequence),
                      .session = c->session,
                      .tokens = c->tokens + held,
                      .count = count,
                      .sampler = chooses ? c->sampler : NULL,
                      .max_tokens = held_back && held_back < most ? held_back : most,
                      .interval = passes_at_a_time(b),
                      .every_row = (echo && held < r->n_prompt) || (r->embed && !r->embed_last),
                      .on_hidden = r->embed ? on_hidden : NULL,
                      .on_logits = echo || (ends && r->top_logprobs >= 0) ? on_logits : NULL,
                      .on_token = on_token,
                      .context = c};
    return QP_OK;
}

/* A moving mean. */
static void mean(double *value, double sample)
{
    *value += (sample - *value) / (*value > 0 ? 8 : 1);
}

static void fail(choice *c, const qp_error *error)
{
    c->request->error = *error;
    stop(c, REQUEST_FAILED, -1);
}

/* Ends the choices that have stopped. */
static void end_stopped(batcher *b)
{
    for (size_t i = 0; i < b->running.count;) {
        choice *c = b->running.items[i];
        if (!c->stopped) {
            i++;
            continue;
        }
        choice_list_remove(&b->running, i);
        batcher_end_choice(b, c, c->finish, c->stop_token);
    }
}

/* After a step: adds the pages of prompts to the tree, and times to the means. */
static void note_step(batcher *b, double ns)
{
    size_t prompt = 0, passes = 0, going = 0, tokens = 0;
    for (size_t i = 0; i < b->n_called; i++) {
        const qp_sequence *s = &b->sequences[i];
        choice *c = b->called[i];
        const bool reads = s->count > 1 || !decodes(c);
        going += !reads;
        prompt += reads ? s->read : 0;
        tokens += reads ? 0 : s->chosen;
        b->stats.proposed_tokens += s->proposed;
        b->stats.accepted_tokens += s->accepted;
        b->stats.drafts += s->proposed > 0;
        for (size_t k = 0; k < s->accepted && k < STATS_DRAFT; k++)
            b->stats.accepted_at[k]++;
        if (s->passes > passes) passes = s->passes;
        const bool more = c->session->count < c->request->n_prompt || c->request->prompt_only;
        if (reads && more) batcher_note_progress(b, c, c->session->count);
        if (reads) batcher_keep_prefix(b, c);
        end_read_only(b, c);
    }
    stats_add_pass(&b->stats, (pass_stats){.milliseconds = ns * 1e-6,
                                           .passes = passes,
                                           .prompt_tokens = prompt,
                                           .decode_tokens = tokens,
                                           .sequences = b->n_called});
    b->read_prompts = prompt > 0;
    if (prompt == 0 && passes > 0) mean(&b->pass_ns, ns / (double)passes);
    if (prompt < LEAST_TIMED) return;
    /* A pass that only decodes would take no longer. */
    if (going && (b->pass_ns <= 0 || ns < b->pass_ns)) b->pass_ns = ns;
    const double rest = ns - (going ? b->pass_ns : 0);
    if (rest <= 0) return;
    double sample = rest / (double)prompt;
    if (b->token_ns > 0 && sample > 2 * b->token_ns) sample = 2 * b->token_ns; /* an outlier */
    mean(&b->token_ns, sample);
}

static void note_own_time(batcher *b, uint64_t now)
{
    b->stats.own_seconds += (double)(now - b->last_return) * 1e-9;
    b->stats.own_steps++;
}

static void take_one_pass(batcher *b)
{
    for (size_t i = 0; i < b->n_called; i++)
        b->sequences[i].max_tokens = 1;
}

/* Steps all choices. If there are too few pages, tries again with fewer choices. */
static qp_status step_all(batcher *b, qp_error *error)
{
    qp_status status = QP_NO_MEMORY;
    while (status == QP_NO_MEMORY) {
        const kinds k = count_kinds(b);
        const bool alone = decodes_alone(b, k);
        size_t budget = alone ? 0 : prompt_budget(b, k);
        b->n_called = 0;
        for (size_t i = 0; i < b->running.count; i++) {
            choice *c = b->running.items[i];
            qp_error why;
            if (!c->stopped && add_sequence(b, c, &budget, &why) != QP_OK) fail(c, &why);
        }
        if (alone) take_one_pass(b); /* the next call reads prompts: none may be in flight then */
        if (b->n_called == 0) return QP_OK;
        const uint64_t begin = clock_ns();
        if (b->last_return) note_own_time(b, begin);
        status = qp_step(b->engine, b->sequences, b->n_called, error);
        b->last_return = clock_ns();
        if (status == QP_OK) note_step(b, (double)(b->last_return - begin));
        if (status == QP_NO_MEMORY && !batcher_preempt(b)) break;
    }
    return status;
}

bool batcher_step(batcher *b)
{
    qp_error error;
    if (step_all(b, &error) != QP_OK)
        for (size_t i = 0; i < b->n_called; i++)
            fail(b->called[i], &error);
    end_stopped(b);
    return b->n_called > 0;
}
