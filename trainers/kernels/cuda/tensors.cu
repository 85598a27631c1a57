// Work on many tensors at once, wherever they lie: `chunks` has for each block the number of a tensor and the index of
// the first value; other arguments are indexed by tensor: addresses as integers, counts of values.
enum { CHUNK = 1 << 14 };

struct Chunk { size tensor, start, stop; };

INLINE Chunk chunk_of(const size* chunks, const size* counts) {
  size tensor = chunks[2 * blockIdx.x], start = chunks[2 * blockIdx.x + 1], count = counts[tensor];
  return {tensor, start, start + CHUNK < count ? start + CHUNK : count};
}

// Sets `finite` to 0 for each tensor with an infinity or a NaN; leaves it for others.
KERNEL not_finite(const size* chunks, const size* counts, const size* values, unsigned char* finite) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const T* x = (const T*)values[chunk.tensor];
    bool odd = false;
#pragma unroll 4
    for (size at = chunk.start + t; at < chunk.stop; at += THREADS) {
      A value = wide(x[at]);
      if (!(value - value == 0)) odd = true;
    }
    if (odd) finite[chunk.tensor] = 0;
  }
}

// Tensors of A rounded to T, written to `out` from `places` on. Those of shape (rows, channels, window) are written as
// (rows, window, channels): the weights of a convolution with their channels last.
KERNEL narrowed(const size* chunks, const size* counts, const size* values, const size* channels, const size* windows,
                const size* places, T* out) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const A* x = (const A*)values[chunk.tensor];
    T* y = out + places[chunk.tensor];
    unsigned across = channels[chunk.tensor], window = windows[chunk.tensor];
#pragma unroll 4
    for (unsigned at = chunk.start + t; at < chunk.stop; at += THREADS) {
      unsigned from = at;
      if (window > 1) {
        unsigned pixel = at / across, row = pixel / window;
        from = (row * across + at % across) * window + pixel % window;
      }
      narrow(x[from], y[at]);
    }
  }
}

enum { ADDRESSES = 240 };
struct Addresses { size at[ADDRESSES]; };

// Gradients written to their `places` in `out`, in C order, or added there where `adds`; sets `found` to 1 at the
// `numbers` of those with an infinity or a NaN. Those with a window above 1 are read as (rows, window, channels).
KERNEL gathered(const size* chunks, const size* counts, Addresses values, const size* channels, const size* windows,
                const size* places, const size* numbers, const size* adds, A* out, unsigned char* found) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const T* x = (const T*)values.at[chunk.tensor];
    A* y = out + places[chunk.tensor];
    unsigned across = channels[chunk.tensor], window = windows[chunk.tensor];
    bool add = adds[chunk.tensor], odd = false;
#pragma unroll 4
    for (unsigned at = chunk.start + t; at < chunk.stop; at += THREADS) {
      unsigned from = at;
      if (window > 1) {
        unsigned channel = at / window, row = channel / across;
        from = (row * window + at % window) * across + channel % across;
      }
      A value = wide(x[from]);
      if (!(value - value == 0)) odd = true;
      y[at] = add ? y[at] + value : value;
    }
    if (odd && found) found[numbers[chunk.tensor]] = 1;
  }
}
