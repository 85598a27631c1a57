// Pooling: images (n, height, width, channels), windows (n, rows, columns, channels).
struct alignas(V) Places { unsigned char at[V]; };

#define WINDOWS size n, size height, size width, size channels, size rows, size columns, size kernel_y, \
  size kernel_x, size stride_y, size stride_x, size pad_y, size pad_x

// The V channels of one pixel of an array (n, down, across, channels); false for threads beyond it.
struct Pixel { size image, y, x, channel; };

INLINE bool pixel(int t, size n, size down, size across, size channels, Pixel& p) {
  unsigned rest = (unsigned)blockIdx.x * THREADS + t, vectors = channels / V;  // fewer than 2**32, and fast to divide
  p.channel = rest % vectors * V, rest /= vectors;
  p.x = rest % (unsigned)across, rest /= (unsigned)across;
  p.y = rest % (unsigned)down, p.image = rest / (unsigned)down;
  return p.image < n;
}

INLINE size index(const Pixel& p, size y, size x, size down, size across, size channels) {
  return ((p.image * down + y) * across + x) * channels + p.channel;
}

// The largest value of each window, and its place there, the first of equal ones.
KERNEL max_pooled(READ x, T* y, unsigned char* places, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    if (pixel(t, n, rows, columns, channels, p)) {
      A best[V];
      Places where = {};
      for (int v = 0; v < V; ++v) best[v] = -INFINITY;
      for (size j = 0; j < kernel_y; ++j) {
        for (size i = 0; i < kernel_x; ++i) {
          size down = p.y * stride_y - pad_y + j, across = p.x * stride_x - pad_x + i;
          if (down < 0 || down >= height || across < 0 || across >= width) continue;
          Values values = load(x, index(p, down, across, height, width, channels));
          for (int v = 0; v < V; ++v) {
            A value = wide(values.at[v]);
            if (value > best[v] || value != value) {
              best[v] = value;
              where.at[v] = (unsigned char)(j * kernel_x + i);
            }
          }
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(best[v], out.at[v]);
      size at = index(p, p.y, p.x, rows, columns, channels);
      store(y, at, out);
      *(Places*)(places + at) = where;
    }
  }
}

// The windows that a pixel lies in: from `first` up to `last`.
INLINE void windows_of(size at, size pad, size kernel, size stride, size count, size& first, size& last) {
  size before = at + pad - kernel + 1;
  first = before > 0 ? (before + stride - 1) / stride : 0;
  last = (at + pad) / stride;
  if (last > count - 1) last = count - 1;
}

// The gradient of pooling's input: the sum of gy over a pixel's windows, where it was the largest; with null places
// (average pooling) over all its windows, divided by their size.
KERNEL pooling_gradient(READ gy, const unsigned char* places, T* gx, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    if (pixel(t, n, height, width, channels, p)) {
      size top, bottom, left, right;
      windows_of(p.y, pad_y, kernel_y, stride_y, rows, top, bottom);
      windows_of(p.x, pad_x, kernel_x, stride_x, columns, left, right);
      A sum[V] = {};
      for (size j = top; j <= bottom; ++j) {
        for (size i = left; i <= right; ++i) {
          size at = index(p, j, i, rows, columns, channels);
          size own = (p.y + pad_y - j * stride_y) * kernel_x + p.x + pad_x - i * stride_x;
          Values values = load(gy, at);
          Places where = {};
          if (places) where = *(const Places*)(places + at);
          for (int v = 0; v < V; ++v)
            if (!places || where.at[v] == own) sum[v] += wide(values.at[v]);
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(places ? sum[v] : sum[v] / (A)(kernel_y * kernel_x), out.at[v]);
      store(gx, index(p, p.y, p.x, height, width, channels), out);
    }
  }
}

// The values of x at the places that `max_pooled` found in another array.
KERNEL max_pooled_at(READ x, const unsigned char* places, T* y, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    if (pixel(t, n, rows, columns, channels, p)) {
      size at = index(p, p.y, p.x, rows, columns, channels);
      Values out;
      for (int v = 0; v < V; ++v) {
        size down = p.y * stride_y - pad_y + places[at + v] / kernel_x;
        size across = p.x * stride_x - pad_x + places[at + v] % kernel_x;
        bool inside = down >= 0 && down < height && across >= 0 && across < width;
        if (inside) out.at[v] = x[index(p, down, across, height, width, channels) + v];
        else narrow(-INFINITY, out.at[v]);
      }
      store(y, at, out);
    }
  }
}

// The mean of each window, zeros beyond the border.
KERNEL average_pooled(READ x, T* y, WINDOWS) {
  EACH_THREAD(t) {
    Pixel p;
    if (pixel(t, n, rows, columns, channels, p)) {
      A sum[V] = {};
      for (size j = 0; j < kernel_y; ++j) {
        for (size i = 0; i < kernel_x; ++i) {
          size down = p.y * stride_y - pad_y + j, across = p.x * stride_x - pad_x + i;
          if (down < 0 || down >= height || across < 0 || across >= width) continue;
          Values values = load(x, index(p, down, across, height, width, channels));
          for (int v = 0; v < V; ++v) sum[v] += wide(values.at[v]);
        }
      }
      Values out;
      for (int v = 0; v < V; ++v) narrow(sum[v] / (A)(kernel_y * kernel_x), out.at[v]);
      store(y, index(p, p.y, p.x, rows, columns, channels), out);
    }
  }
}
