# kilobatch for CPUs: docker build -t kilobatch . && docker run --rm -v "$PWD:/work" kilobatch train digits/large_batch -n 2
# GPUs need CuPy and NVIDIA's base image beside this: docs/gpus.md.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
# Chainer and ChainerCV come as source, see scripts/setup.
RUN pip install --no-cache-dir "setuptools>=74.1,<81" wheel numpy \
    && CC=true pip install --no-cache-dir --no-build-isolation chainer==7.8.1 chainercv==0.13.1 \
    && pip install --no-cache-dir "/src[all]" \
    && rm -rf /src
WORKDIR /work
ENTRYPOINT ["kilobatch"]
