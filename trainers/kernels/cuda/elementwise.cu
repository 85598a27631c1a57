// For arrays of one memory layout: `count` values each, a multiple of V.
#define EACH_VALUE(t, at) \
  EACH_THREAD(t) \
    for (size at = ((size)blockIdx.x * THREADS + t) * V, stop = at + V; at < count && at < stop; at = stop)

// max(x, 0); NaN stays.
KERNEL relu(READ x, T* y, size count) {
  EACH_VALUE(t, at) {
    Values values = load(x, at);
    for (int v = 0; v < V; ++v)
      if (wide(values.at[v]) < 0) narrow(A(0), values.at[v]);
    store(y, at, values);
  }
}

// gy where y > 0, else 0.
KERNEL relu_gradient(READ y, READ gy, T* gx, size count) {
  EACH_VALUE(t, at) {
    Values outputs = load(y, at), slopes = load(gy, at);
    for (int v = 0; v < V; ++v)
      if (!(wide(outputs.at[v]) > 0)) narrow(A(0), slopes.at[v]);
    store(gx, at, slopes);
  }
}

KERNEL add_to(T* x, READ y, size count) {
  EACH_VALUE(t, at) {
    Values values = load(x, at), others = load(y, at);
    for (int v = 0; v < V; ++v) narrow(wide(values.at[v]) + wide(others.at[v]), values.at[v]);
    store(x, at, values);
  }
}

KERNEL add(READ x, READ y, T* z, size count) {
  EACH_VALUE(t, at) {
    Values values = load(x, at), others = load(y, at);
    for (int v = 0; v < V; ++v) narrow(wide(values.at[v]) + wide(others.at[v]), values.at[v]);
    store(z, at, values);
  }
}
