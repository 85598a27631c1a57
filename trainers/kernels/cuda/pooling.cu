// Pooling: images (n, height, width, channels), windows (n, rows, columns, channels). Within an image, which has fewer
// than 2^31 values, indices are 32 bits: a division by 64 bits takes some seventy instructions.
struct alignas(V) Places { unsigned char at[V]; };

struct Windows { int height, width, channels, rows, columns, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x; };

#define WINDOWS size n, size height, size width, size channels, size rows, size columns, size kernel_y, \
  size kernel_x, size stride_y, size stride_x, size pad_y, size pad_x
#define WINDOWS_GIVEN Windows{(int)height, (int)width, (int)channels, (int)rows, (int)columns, (int)kernel_y, \
  (int)kernel_x, (int)stride_y, (int)stride_x, (int)pad_y, (int)pad_x}

// The V channels of one pixel of an array (n, down, across, channels); false for threads beyond it.
struct Pixel { size image; int y, x, channel; };

INLINE bool pixel(int t, size n, int down, int across, int channels, Pixel& p) {
  unsigned rest = (unsigned)blockIdx.x * THREADS + t, vectors = channels / V;  // fewer than 2^32
  p.channel = rest % vectors * V, rest /= vectors;
  p.x = rest % (unsigned)across, rest /= (unsigned)across;
  p.y = rest % (unsigned)down, p.image = rest / (unsigned)down;
  return p.image < n;
}

INLINE size index(const Pixel& p, int y, int x, int down, int across, int channels) {
  return p.image * (down * across * channels) + (y * across + x) * channels + p.channel;
}

// A pixel of x in a window; false beyond the border.
INLINE bool inside(const Pixel& p, const Windows& w, int j, int i, int& y, int& x) {
  y = p.y * w.stride_y - w.pad_y + j, x = p.x * w.stride_x - w.pad_x + i;
  return y >= 0 && y < w.height && x >= 0 && x < w.width;
}

// The largest value of each window, and its place there, the first of equal ones.
KERNEL max_pooled(READ x, T* y, unsigned char* places, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    const Windows w = WINDOWS_GIVEN;
    if (pixel(t, n, w.rows, w.columns, w.channels, p)) {
      A best[V];
      Places where = {};
      for (int v = 0; v < V; ++v) best[v] = -INFINITY;
      for (int j = 0; j < w.kernel_y; ++j) {
        for (int i = 0; i < w.kernel_x; ++i) {
          int down, across;
          if (!inside(p, w, j, i, down, across)) continue;
          Values values = load(x, index(p, down, across, w.height, w.width, w.channels));
          for (int v = 0; v < V; ++v) {
            A value = wide(values.at[v]);
            if (value > best[v] || value != value) {
              best[v] = value;
              where.at[v] = (unsigned char)(j * w.kernel_x + i);
            }
          }
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(best[v], out.at[v]);
      size at = index(p, p.y, p.x, w.rows, w.columns, w.channels);
      store(y, at, out);
      *(Places*)(places + at) = where;
    }
  }
}

// The windows that a pixel lies in: from `first` up to `last`.
INLINE void windows_of(int at, int pad, int kernel, int stride, int count, int& first, int& last) {
  int before = at + pad - kernel + 1;
  first = before > 0 ? (unsigned)(before + stride - 1) / (unsigned)stride : 0;
  last = (unsigned)(at + pad) / (unsigned)stride;
  if (last > count - 1) last = count - 1;
}

// The gradient of pooling's input: the sum of gy over a pixel's windows, where it was the largest; with null places
// (average pooling) over all its windows, divided by their size.
KERNEL pooling_gradient(READ gy, const unsigned char* places, T* gx, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    const Windows w = WINDOWS_GIVEN;
    if (pixel(t, n, w.height, w.width, w.channels, p)) {
      int top, bottom, left, right;
      windows_of(p.y, w.pad_y, w.kernel_y, w.stride_y, w.rows, top, bottom);
      windows_of(p.x, w.pad_x, w.kernel_x, w.stride_x, w.columns, left, right);
      A sum[V] = {};
      for (int j = top; j <= bottom; ++j) {
        for (int i = left; i <= right; ++i) {
          size at = index(p, j, i, w.rows, w.columns, w.channels);
          int own = (p.y + w.pad_y - j * w.stride_y) * w.kernel_x + p.x + w.pad_x - i * w.stride_x;
          Values values = load(gy, at);
          Places where = {};
          if (places) where = *(const Places*)(places + at);
          for (int v = 0; v < V; ++v)
            if (!places || where.at[v] == own) sum[v] += wide(values.at[v]);
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(places ? sum[v] : sum[v] / (A)(w.kernel_y * w.kernel_x), out.at[v]);
      store(gx, index(p, p.y, p.x, w.height, w.width, w.channels), out);
    }
  }
}

// The mean of each window, zeros beyond the border.
KERNEL average_pooled(READ x, T* y, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    const Windows w = WINDOWS_GIVEN;
    if (pixel(t, n, w.rows, w.columns, w.channels, p)) {
      A sum[V] = {};
      for (int j = 0; j < w.kernel_y; ++j) {
        for (int i = 0; i < w.kernel_x; ++i) {
          int down, across;
          if (!inside(p, w, j, i, down, across)) continue;
          Values values = load(x, index(p, down, across, w.height, w.width, w.channels));
          for (int v = 0; v < V; ++v) sum[v] += wide(values.at[v]);
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(sum[v] / (A)(w.kernel_y * w.kernel_x), out.at[v]);
      store(y, index(p, p.y, p.x, w.rows, w.columns, w.channels), out);
    }
  }
}
