// Moves running means and variances, (2, channels), by the sums of an update: `places` has for each channel the indexes
// in `sums` of its weight, mean, variance and squared mean. A channel of weight 0 stays.
KERNEL moved_averages(const double* sums, const size* places, T* averages, double keep, size pooled, size channels) {
  EACH_THREAD(t) {
    size at = (size)blockIdx.x * THREADS + t;
    double weight = at < channels ? sums[places[at]] : 0;
    if (weight != 0) {
      double mean = sums[places[channels + at]] / weight, var = sums[places[2 * channels + at]] / weight;
      if (pooled) {
        double apart = sums[places[3 * channels + at]] / weight - mean * mean;
        if (!(apart <= 0)) var += apart;
      }
      narrow((A)(keep * wide(averages[at]) + (1 - keep) * mean), averages[at]);
      narrow((A)(keep * wide(averages[channels + at]) + (1 - keep) * var), averages[channels + at]);
    }
  }
}
