// Of many tensors at once, wherever they lie: `chunks` has for each block the number of a tensor and the value that it
// begins at, the others are indexed by that number: addresses as integers, and counts of values.
enum { CHUNK = 1 << 14 };

struct Chunk { size tensor, start, stop; };

INLINE Chunk chunk_of(const size* chunks, const size* counts) {
  size tensor = chunks[2 * blockIdx.x], start = chunks[2 * blockIdx.x + 1], count = counts[tensor];
  return {tensor, start, start + CHUNK < count ? start + CHUNK : count};
}

// 1 for each tensor with an infinity or a NaN; the others' places stay.
KERNEL not_finite(const size* chunks, const size* counts, const size* values, unsigned char* found) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const T* x = (const T*)values[chunk.tensor];
    bool odd = false;
#pragma unroll 4
    for (size at = chunk.start + t; at < chunk.stop; at += THREADS) {
      A value = wide(x[at]);
      if (!(value - value == 0)) odd = true;
    }
    if (odd) found[chunk.tensor] = 1;
  }
}
