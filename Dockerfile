# quipu in a container: built on Debian 12, run on Debian 12 with only the package installed.
#
#     docker build -t quipu .                                          CPU
#     docker build -t quipu --build-arg CUDA=13-0 .                    CPU and NVIDIA GPUs
#     docker run --rm -it -v quipu-models:/models quipu                chat with smollm2:135m
#     docker run --rm -it -v quipu-models:/models quipu chat -m llama3.2:1b
#     docker run --rm -it --gpus all -v quipu-models:/models quipu     with the host's GPUs
#     docker run --rm -p 127.0.0.1:8080:8080 -v quipu-models:/models quipu serve -m smollm2:135m --host 0.0.0.0 --insecure
#
# Models are fetched from Hugging Face once, into the volume. A server in a container must listen at an address that other
# computers reach; -p above lets only this host in. To let others in, give keys in place of --insecure.
# CUDA is the suffix of NVIDIA's packages cuda-nvcc-* and cuda-cudart-dev-*. The compiler stays in the
# first stage: a program with GPU code opens the host's driver when it runs, and cuBLASLt where the
# image has it (libcublas-*).
#
# Tried in a minimal Debian 12 root, command by command: the build's packages and CMake's configuration,
# the installation of the package that CPack makes, the user, and a run as that user. Not tried: the
# whole image, and the build with CUDA.
ARG DEBIAN=debian:bookworm-slim

FROM ${DEBIAN} AS build
ARG CUDA=
RUN apt-get update && apt-get install -y --no-install-recommends \
        ca-certificates cmake curl dpkg-dev file gcc git libc6-dev libcjson-dev \
        libcurl4-openssl-dev libevent-dev libjs-highlight.js libjs-katex libjs-marked libpcre2-dev libssl-dev ninja-build \
        node-dompurify pkg-config \
    && rm -rf /var/lib/apt/lists/*
RUN if [ -n "$CUDA" ]; then \
        curl -fsSLo /tmp/keyring.deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb \
        && dpkg -i /tmp/keyring.deb && apt-get update \
        && apt-get install -y --no-install-recommends g++ "cuda-nvcc-$CUDA" "cuda-cudart-dev-$CUDA" \
        && rm -rf /var/lib/apt/lists/*; \
    fi
COPY . /source
RUN if [ -n "$CUDA" ]; then gpu=on; else gpu=off; fi \
    && cmake -G Ninja -S /source -B /build -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DQUIPU_GPU=$gpu \
    && cmake --build /build \
    && cd /build && cpack -G DEB

FROM ${DEBIAN}
COPY --from=build /build/quipu_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates /tmp/quipu_*.deb \
    && rm -rf /var/lib/apt/lists/* /tmp/quipu_*.deb \
    && useradd --create-home quipu && install -d -o quipu /models
USER quipu
ENV HF_HOME=/models
# The driver's libraries and nvidia-smi of the host, where the container gets its GPUs.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /models
ENTRYPOINT ["quipu"]
CMD ["chat", "-m", "smollm2:135m"]
