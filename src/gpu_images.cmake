# GPU images that are not simply a .cu file of their name: the megakernel's and those of chains, which
# are one source each, compiled with different defines (see vm/mega/kernels.cu and op/linear/linear_chain.cuh),
# and those that only tests load.
#
#     gpu_image(NAME SOURCE DEFINE...)       in the program
#     gpu_test_image(NAME SOURCE DEFINE...)  only in the programs under tests/
#
# None has PTX: these kernels are for compute capability 9.0 only, and PTX would take a third of the
# time that they take to compile.
set(GPU_IMAGE_SOURCES) # these give no image of their own name

macro(gpu_image name source)
  list(APPEND GPU_IMAGES ${name})
  list(APPEND GPU_IMAGE_SOURCES ${PROJECT_SOURCE_DIR}/src/${source})
  compile_image(${name} ${PROJECT_SOURCE_DIR}/src/${source} ${ARGN})
endmacro()

macro(gpu_test_image name source)
  list(APPEND GPU_TEST_IMAGES ${name})
  compile_image(${name} ${PROJECT_SOURCE_DIR}/src/${source} ${ARGN})
endmacro()

# Quantised weights: a bit 1 << FRAGMENT_... (vm/mega/fragments.h) for each type that a kernel reads. Kernels
# for only Q8_0 or only Q4_0, or for Q4_K beside Q6_K, have less code, which stays in the instruction cache; the
# others read any mix.
set(Q8_0 -DMEGA_QUANT_TYPES=0x02)
set(Q4_0 -DMEGA_QUANT_TYPES=0x04)
set(Q4_K -DMEGA_QUANT_TYPES=0x18)
set(MIXED -DMEGA_QUANT_TYPES=0x3e)
set(F8 -DMEGA_QUANT_TYPES=0x1c0)

# Without what families have beside a Llama. One sequence of Q4_K is 2% faster so, several of BF16 are 3.5%;
# other kernels gain less.
set(PLAIN -DMEGA_FAMILIES=0)

gpu_image(mega                          vm/mega/kernels.cu)
gpu_image(mega_choosing                 vm/mega/kernels.cu -DMEGA_CHOOSES=1)
gpu_image(mega_f16                      vm/mega/kernels.cu -DMEGA_HALF=1)
gpu_image(mega_f16_choosing             vm/mega/kernels.cu -DMEGA_HALF=1 -DMEGA_CHOOSES=1)
# A KV cache in F8.
gpu_image(mega_cache_f8                 vm/mega/kernels.cu -DMEGA_CACHE_F8=1)
gpu_image(mega_cache_f8_choosing        vm/mega/kernels.cu -DMEGA_CACHE_F8=1 -DMEGA_CHOOSES=1)
gpu_image(mega_f16_cache_f8             vm/mega/kernels.cu -DMEGA_CACHE_F8=1 -DMEGA_HALF=1)
gpu_image(mega_f16_cache_f8_choosing    vm/mega/kernels.cu -DMEGA_CACHE_F8=1 -DMEGA_HALF=1 -DMEGA_CHOOSES=1)
gpu_image(mega_f8_cache_f8              vm/mega/kernels.cu -DMEGA_CACHE_F8=1 ${F8})
gpu_image(mega_f8_cache_f8_choosing     vm/mega/kernels.cu -DMEGA_CACHE_F8=1 ${F8} -DMEGA_CHOOSES=1)
gpu_image(mega_mixed_cache_f8           vm/mega/kernels.cu -DMEGA_CACHE_F8=1 ${MIXED})
gpu_image(mega_mixed_cache_f8_choosing  vm/mega/kernels.cu -DMEGA_CACHE_F8=1 ${MIXED} -DMEGA_CHOOSES=1)
gpu_image(mega_q8_0                     vm/mega/kernels.cu ${Q8_0})
gpu_image(mega_q8_0_choosing            vm/mega/kernels.cu ${Q8_0} -DMEGA_CHOOSES=1)
gpu_image(mega_q4_0                     vm/mega/kernels.cu ${Q4_0})
gpu_image(mega_q4_0_choosing            vm/mega/kernels.cu ${Q4_0} -DMEGA_CHOOSES=1)
gpu_image(mega_q4_k                     vm/mega/kernels.cu ${Q4_K} ${PLAIN})
gpu_image(mega_q4_k_choosing            vm/mega/kernels.cu ${Q4_K} ${PLAIN} -DMEGA_CHOOSES=1)
gpu_image(mega_q4_k_families            vm/mega/kernels.cu ${Q4_K})
gpu_image(mega_q4_k_families_choosing   vm/mega/kernels.cu ${Q4_K} -DMEGA_CHOOSES=1)
gpu_image(mega_f8                       vm/mega/kernels.cu ${F8})
gpu_image(mega_f8_choosing              vm/mega/kernels.cu ${F8} -DMEGA_CHOOSES=1)
gpu_image(mega_mixed                    vm/mega/kernels.cu ${MIXED})
gpu_image(mega_mixed_choosing           vm/mega/kernels.cu ${MIXED} -DMEGA_CHOOSES=1)
gpu_image(mega_batch                    vm/mega/kernels.cu -DMEGA_SEVERAL=1 ${PLAIN})
gpu_image(mega_batch_families           vm/mega/kernels.cu -DMEGA_SEVERAL=1)
gpu_image(mega_batch_f16                vm/mega/kernels.cu -DMEGA_SEVERAL=1 -DMEGA_HALF=1)
gpu_image(mega_batch_q4_0               vm/mega/batch_fragments.cu ${Q4_0})
gpu_image(mega_batch_mixed              vm/mega/batch_fragments.cu ${MIXED})
# Several ranks: a GPU each.
gpu_image(mega_ranks                    vm/mega/kernels.cu -DMEGA_RANKS=1)
gpu_image(mega_ranks_choosing           vm/mega/kernels.cu -DMEGA_RANKS=1 -DMEGA_CHOOSES=1)
gpu_image(mega_ranks_f16                vm/mega/kernels.cu -DMEGA_RANKS=1 -DMEGA_HALF=1)
gpu_image(mega_ranks_f16_choosing       vm/mega/kernels.cu -DMEGA_RANKS=1 -DMEGA_HALF=1 -DMEGA_CHOOSES=1)
gpu_image(mega_ranks_mixed              vm/mega/kernels.cu -DMEGA_RANKS=1 ${MIXED})
gpu_image(mega_ranks_mixed_choosing     vm/mega/kernels.cu -DMEGA_RANKS=1 ${MIXED} -DMEGA_CHOOSES=1)

# Chains: by the form of their products, and for heads of 128. For weights in BF16 / FP8 and heads of 64,
# kernels with code for biases and for norms of heads are 1.5 / 2.4% slower, so Llamas have others there.
macro(chain_image suffix)
  gpu_image(linear_chain${suffix} op/linear/linear_chain.cu -DCHAIN_SUFFIX=${suffix} ${ARGN})
endmacro()
set(FAMILIES -DCHAIN_FAMILIES=1)
set(HEADS_OF_128 -DCHAIN_HEAD=128 ${FAMILIES})

chain_image(""                  "")
chain_image(_families           ${FAMILIES})
chain_image(_128                ${HEADS_OF_128})
chain_image(_packed             -DCHAIN_PACKED=1 ${FAMILIES})
chain_image(_packed_128         -DCHAIN_PACKED=1 ${HEADS_OF_128})
chain_image(_f8                 -DCHAIN_PACKED=1 -DCHAIN_F8=1)
chain_image(_f8_families        -DCHAIN_PACKED=1 -DCHAIN_F8=1 ${FAMILIES})
chain_image(_f8_128             -DCHAIN_PACKED=1 -DCHAIN_F8=1 ${HEADS_OF_128})
# Several GPUs, whose rows are summed over ranks inside the chain; rows of up to 8,192 features.
chain_image(_ranks              -DCHAIN_RANKS=1)
chain_image(_ranks_families     -DCHAIN_RANKS=1 ${FAMILIES})
chain_image(_ranks_128          -DCHAIN_RANKS=1 ${HEADS_OF_128})
chain_image(_wide_128           -DCHAIN_RANKS=1 -DCHAIN_WIDE=1 ${HEADS_OF_128})

# For tests: warps sleep at random, so that races show; or no block waits for another, to measure
# what waiting costs.
set(DELAYED -DMEGA_DELAYS=1 -DMEGA_SUFFIX=_delayed)
gpu_test_image(mega_delayed                 vm/mega/kernels.cu ${DELAYED} -DMEGA_HEADS_OF_128=1)
gpu_test_image(mega_choosing_delayed        vm/mega/kernels.cu ${DELAYED} -DMEGA_CHOOSES=1)
gpu_test_image(mega_mixed_delayed           vm/mega/kernels.cu ${DELAYED} ${MIXED})
gpu_test_image(mega_mixed_choosing_delayed  vm/mega/kernels.cu ${DELAYED} ${MIXED} -DMEGA_CHOOSES=1)
gpu_test_image(mega_f8_delayed              vm/mega/kernels.cu ${DELAYED} ${F8})
gpu_test_image(mega_cache_f8_delayed        vm/mega/kernels.cu ${DELAYED} -DMEGA_CACHE_F8=1)
gpu_test_image(mega_batch_delayed           vm/mega/kernels.cu ${DELAYED} -DMEGA_SEVERAL=1 -DMEGA_HEADS_OF_128=1)
gpu_test_image(mega_batch_mixed_delayed     vm/mega/batch_fragments.cu ${DELAYED} ${MIXED})
gpu_test_image(mega_ranks_delayed           vm/mega/kernels.cu ${DELAYED} -DMEGA_RANKS=1)
gpu_test_image(mega_ranks_choosing_delayed  vm/mega/kernels.cu ${DELAYED} -DMEGA_RANKS=1 -DMEGA_CHOOSES=1)
gpu_test_image(mega_no_waits                vm/mega/kernels.cu -DMEGA_WAITS=0 -DMEGA_SUFFIX=_no_waits)
gpu_test_image(linear_chain_delayed         op/linear/linear_chain.cu -DCHAIN_DELAYS=1 -DCHAIN_SUFFIX=_delayed ${FAMILIES})
gpu_test_image(linear_chain_ranks_delayed   op/linear/linear_chain.cu -DCHAIN_DELAYS=1 -DCHAIN_RANKS=1 -DCHAIN_SUFFIX=_ranks_delayed ${FAMILIES})
