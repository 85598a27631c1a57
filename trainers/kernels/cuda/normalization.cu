// Batch normalisation, and ReLU after it, of (groups, rows, channels): each group has statistics of its own.

// A thread's part of (groups, rows, channels): V channels from `channel` on, of every `step`-th row from `row` on. A
// block is `lanes` threads wide along the channels; blocks are x: channels, y: rows, z: groups.
struct Place { size group, channel, row, step; bool inside; };

INLINE Place place(int t, size channels, size lanes) {
  size lines = THREADS / lanes, channel = (blockIdx.x * lanes + t % lanes) * V;
  return {blockIdx.z, channel, blockIdx.y * lines + t / lanes, gridDim.y * lines, channel < channels};
}

INLINE size offset(const Place& p, size row, size rows, size channels) {
  return (p.group * rows + row) * channels + p.channel;
}

// V values of each of N rows. A thread loads all of them before it uses the first, so that N loads are in flight.
template <int N> struct Batch { Values of[N]; };

#define EACH_BATCH(row, p, N) for (size row = p.row; row < rows; row += N * p.step)
#define EACH_OF(b, N) _Pragma("unroll") for (int b = 0; b < N; ++b)

// Rows row, row + step, ...; zeros beyond the last row.
template <int N> INLINE Batch<N> batch(const T* x, const Place& p, size row, size rows, size channels) {
  Batch<N> values = {};
  EACH_OF(b, N)
    if (row + b * p.step < rows) values.of[b] = load(x, offset(p, row + b * p.step, rows, channels));
  return values;
}

template <int N> INLINE void store(T* x, const Batch<N>& values, const Place& p, size row, size rows, size channels) {
  EACH_OF(b, N)
    if (row + b * p.step < rows) store(x, offset(p, row + b * p.step, rows, channels), values.of[b]);
}

// V numbers of a vector (groups, channels).
struct Vector { A at[V]; };

INLINE Vector vector(const A* of, const Place& p, size channels) {
  Vector numbers;
  for (int v = 0; v < V; ++v) numbers.at[v] = p.inside ? of[p.group * channels + p.channel + v] : A(0);
  return numbers;
}

// Adds the partial sums of a block's threads, two for each of V channels, into parts (groups, blocks, 2, channels).
INLINE void fold(const double* sums, double* parts, size channels, size lanes) {
  EACH_THREAD(t) {
    for (int number = t; number < 2 * V * lanes; number += THREADS) {
      size lane = number % lanes, which = number / lanes, channel = (blockIdx.x * lanes + lane) * V + which / 2;
      double total = 0;
      for (int other = lane; other < THREADS; other += lanes) total += sums[which * THREADS + other];
      if (channel < channels)
        parts[(((size)blockIdx.z * gridDim.y + blockIdx.y) * 2 + which % 2) * channels + channel] = total;
    }
  }
}

// Sums of x and of its square.
KERNEL_OF(4) moments(READ x, double* parts, size rows, size channels, size lanes) {
  SHARED double sums[2 * V * THREADS];
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    double sum[V] = {}, square[V] = {};
    if (p.inside) {
      EACH_BATCH(row, p, 4) {
        Batch<4> values = batch<4>(x, p, row, rows, channels);
        EACH_OF(b, 4) {
          for (int v = 0; v < V; ++v) {
            double value = wide(values.of[b].at[v]);
            sum[v] += value;
            square[v] += value * value;
          }
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      sums[2 * v * THREADS + t] = sum[v];
      sums[(2 * v + 1) * THREADS + t] = square[v];
    }
  }
  fold(sums, parts, channels, lanes);
}

// A block that adds up parts has FEW channels of all groups (some sums are over groups), `slots` groups at a time.
enum { FEW = 4 };

INLINE size slots_of(size groups) {
  size slots = 1;
  while (slots < groups && slots < THREADS / FEW) slots *= 2;
  return slots;
}

// The parts that a thread adds up: of a group and channel, every `lines`-th from `line` on.
struct Total { size group, channel, line; bool inside; };

INLINE Total total_at(int t, size first, size slots, size groups, size channels) {
  size group = first + t / FEW % slots, channel = blockIdx.x * FEW + t % FEW;
  return {group, channel, t / FEW / slots, group < groups && channel < channels};
}

// Adds up parts (groups, count, 2, channels) of the groups from `first` on. A thread whose line is 0 then finds its
// first total in sums[t], its second in sums[THREADS + t].
INLINE void add_up(const double* parts, double* sums, size first, size slots, size groups, size channels, size count) {
  size lines = THREADS / FEW / slots;
  EACH_THREAD(t) {
    Total p = total_at(t, first, slots, groups, channels);
    double sum = 0, other = 0;
    if (p.inside) {
#pragma unroll 4
      for (size number = p.line; number < count; number += lines) {
        const double* part = parts + (p.group * count + number) * 2 * channels + p.channel;
        sum += part[0];
        other += part[channels];
      }
    }
    sums[t] = sum;
    sums[THREADS + t] = other;
  }
  for (size half = THREADS / 2; half >= FEW * slots; half /= 2) {
    EACH_THREAD(t) {
      if (t < half) {
        sums[t] += sums[t + half];
        sums[THREADS + t] += sums[THREADS + t + half];
      }
    }
  }
}

// Mean and variance of groups from parts (groups, count, 2, channels). Where values > 0, parts are sums of so many
// values and of their squares; else they add up to mean and variance themselves. Written where not null:
//
// total: mean and biased variance, or what the parts add up to, (groups, 2, channels)
// scales: mean, 1 / deviation, gamma / deviation and beta, (4, groups, channels)
// seen: added to, (1 + 3 * channels): the sum of the groups' weights, and the weighted sums of means, of variances
//   times a factor, and of squared means
KERNEL totals(const double* parts, double* total, VECTOR gamma, VECTOR beta, A* scales, const double* weights,
              double* seen, double values, double eps, double factor, size groups, size channels, size count) {
  SHARED double sums[2 * THREADS];
  size slots = slots_of(groups), all = groups * channels;
  for (size first = 0; first < groups; first += slots) {
    add_up(parts, sums, first, slots, groups, channels, count);
    EACH_THREAD(t) {
      Total p = total_at(t, first, slots, groups, channels);
      if (p.inside && p.line == 0) {
        double mean = sums[t], variance = sums[THREADS + t];
        if (values > 0) {
          mean /= values;
          variance = variance / values - mean * mean;
          if (variance < 0) variance = 0;
          sums[t] = mean;
          sums[THREADS + t] = variance;
        }
        if (total) {
          total[p.group * 2 * channels + p.channel] = mean;
          total[(p.group * 2 + 1) * channels + p.channel] = variance;
        }
        if (scales) {
          size at = p.group * channels + p.channel;
          A inverse = (A)(1 / sqrt(variance + eps));
          scales[at] = (A)mean;
          scales[all + at] = inverse;
          scales[2 * all + at] = gamma[p.channel] * inverse;
          scales[3 * all + at] = beta[p.channel];
        }
      }
    }
    EACH_THREAD(t) {
      size channel = blockIdx.x * FEW + t;
      if (seen && t < FEW && channel < channels) {
        double weight = 0, means = 0, variances = 0, squares = 0;
        for (size slot = 0; slot < slots && first + slot < groups; ++slot) {
          double of_group = weights[first + slot], mean = sums[slot * FEW + t];
          weight += of_group;
          means += of_group * mean;
          variances += of_group * sums[THREADS + slot * FEW + t];
          squares += of_group * mean * mean;
        }
        if (channel == 0) seen[0] += weight;
        seen[1 + channel] += means;
        seen[1 + channels + channel] += factor * variances;
        seen[1 + 2 * channels + channel] += squares;
      }
    }
  }
}

// From the parts of gradient_sums: slope and shift of input_gradient, (2, groups, channels), in `found`, and the
// gradients of gamma and beta, (2, channels). `whole`, (groups, 2, channels): gradients of beta and gamma over whole
// groups of `values` rows each, where x has parts of groups; else null. Parts are not yet divided by the deviation.
KERNEL slopes(const double* parts, const double* whole, VECTOR scales, A* found, A* gradients, double values,
              size groups, size channels, size count) {
  SHARED double sums[2 * THREADS], of_gamma[FEW], of_beta[FEW];
  size slots = slots_of(groups), all = groups * channels;
  for (size first = 0; first < groups; first += slots) {
    add_up(parts, sums, first, slots, groups, channels, count);
    EACH_THREAD(t) {
      Total p = total_at(t, first, slots, groups, channels);
      if (p.inside && p.line == 0) {
        size at = p.group * channels + p.channel;
        double inverse = scales[all + at], scale = scales[2 * all + at];
        double sum = sums[t], product = sums[THREADS + t];
        sums[THREADS + t] = product * inverse;
        if (whole) {
          sum = whole[p.group * 2 * channels + p.channel];
          product = whole[(p.group * 2 + 1) * channels + p.channel] / inverse;
        }
        found[at] = (A)(scale * inverse * inverse * product / values);
        found[all + at] = (A)(scale * sum / values);
      }
    }
    EACH_THREAD(t) {
      size channel = blockIdx.x * FEW + t;
      if (t < FEW && channel < channels) {
        double ggamma = first ? of_gamma[t] : 0, gbeta = first ? of_beta[t] : 0;
        for (size slot = 0; slot < slots && first + slot < groups; ++slot) {
          gbeta += sums[slot * FEW + t];
          ggamma += sums[THREADS + slot * FEW + t];
        }
        of_gamma[t] = ggamma;
        of_beta[t] = gbeta;
        if (first + slots >= groups) {
          gradients[channel] = (A)ggamma;
          gradients[channels + channel] = (A)gbeta;
        }
      }
    }
  }
}

INLINE A normal(A x, A mean, A scale, A beta) { return fused(x - mean, scale, beta); }

// y = (x - mean) * scale + beta + plus, then ReLU where `relu`; plus may be null.
KERNEL_OF(2) normalized(READ x, READ plus, T* y, VECTOR mean, VECTOR scale, VECTOR beta, size relu, size rows, size channels,
                  size lanes) {
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    if (p.inside) {
      EACH_BATCH(row, p, 2) {
        Batch<2> values = batch<2>(x, p, row, rows, channels), more = {};
        if (plus) more = batch<2>(plus, p, row, rows, channels);
        EACH_OF(b, 2) {
          for (int v = 0; v < V; ++v) {
            A found = normal(wide(values.of[b].at[v]), about.at[v], times.at[v], by.at[v]);
            if (plus) found += wide(more.of[b].at[v]);
            narrow(relu && found < 0 ? A(0) : found, values.of[b].at[v]);
          }
        }
        store(y, values, p, row, rows, channels);
      }
    }
  }
}

// Sums of gy and of gy * (x - mean). With relu only gy where y > 0 counts, which is written to `counted`, 0 elsewhere;
// where y is null, only gy where normalised x is above 0.
KERNEL_OF(3) gradient_sums(READ gy, READ x, READ y, T* counted, VECTOR mean, VECTOR scale, VECTOR beta, double* parts,
                     size relu, size rows, size channels, size lanes) {
  SHARED double sums[2 * V * THREADS];
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    double sum[V] = {}, product[V] = {};
    if (p.inside) {
      EACH_BATCH(row, p, 1) {
        Batch<1> slopes = batch<1>(gy, p, row, rows, channels), values = batch<1>(x, p, row, rows, channels), outputs = values;
        if (y) outputs = batch<1>(y, p, row, rows, channels);
        EACH_OF(b, 1) {
          for (int v = 0; v < V; ++v) {
            A value = wide(values.of[b].at[v]), slope = wide(slopes.of[b].at[v]);
            if (relu) {
              A out = y ? wide(outputs.of[b].at[v]) : normal(value, about.at[v], times.at[v], by.at[v]);
              if (!(out > 0)) slope = 0;
            }
            if (y) narrow(slope, slopes.of[b].at[v]);
            sum[v] += slope;
            product[v] += (double)(slope * (value - about.at[v]));
          }
        }
        if (y) store(counted, slopes, p, row, rows, channels);
      }
    }
    for (int v = 0; v < V; ++v) {
      sums[2 * v * THREADS + t] = sum[v];
      sums[(2 * v + 1) * THREADS + t] = product[v];
    }
  }
  fold(sums, parts, channels, lanes);
}

// gx = gy * scale - ((x - mean) * slope + shift); with relu gy counts as 0 where normalised x is not above 0.
KERNEL_OF(1) input_gradient(READ gy, READ x, T* gx, VECTOR mean, VECTOR scale, VECTOR beta, VECTOR slope, VECTOR shift,
                      size relu, size rows, size channels, size lanes) {
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    Vector incline = vector(slope, p, channels), plus = vector(shift, p, channels);
    if (p.inside) {
      EACH_BATCH(row, p, 4) {
        Batch<4> slopes = batch<4>(gy, p, row, rows, channels), values = batch<4>(x, p, row, rows, channels);
        EACH_OF(b, 4) {
          for (int v = 0; v < V; ++v) {
            A value = wide(values.of[b].at[v]), found = wide(slopes.of[b].at[v]);
            if (relu && !(normal(value, about.at[v], times.at[v], by.at[v]) > 0)) found = 0;
            narrow(found * times.at[v] - normal(value, about.at[v], incline.at[v], plus.at[v]), values.of[b].at[v]);
          }
        }
        store(gx, values, p, row, rows, channels);
      }
    }
  }
}

