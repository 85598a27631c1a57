// One block for each row of each image: y = (x - shift) / scale of each channel, in float, channels last. x has them
// last as well (`column_step` channels, `channel_step` 1) or first (1, pixels of an image). y has `out_channels`, 0 in
// those that x lacks. Where `mirrored` is set, columns are reversed. One difference and one quotient, each rounded: no
// fused multiply-add can change the bits.
template <typename X>
INLINE void finish(const X* x, const unsigned char* mirrored, const float* shift, const float* scale, T* y, size height,
                   size width, size channels, size out_channels, size column_step, size channel_step) {
  EACH_THREAD(t) {
    size image = blockIdx.x / height, row = blockIdx.x % height;
    const X* from = x + image * height * width * channels + row * width * column_step;
    T* to = y + (size)blockIdx.x * width * out_channels;
    bool mirror = mirrored[image];
    for (int at = t, values = width * out_channels, each = out_channels; at < values; at += THREADS) {
      int column = at / each, channel = at % each;
      if (mirror) column = (int)width - 1 - column;
      float value = 0;
      if (channel < channels)
        value = ((float)from[column * column_step + channel * channel_step] - shift[channel]) / scale[channel];
      narrow((A)value, to[at]);
    }
  }
}

KERNEL finish_bytes(const unsigned char* x, const unsigned char* mirrored, const float* shift, const float* scale, T* y,
                    size height, size width, size channels, size out_channels, size column_step, size channel_step) {
  finish(x, mirrored, shift, scale, y, height, width, channels, out_channels, column_step, channel_step);
}

KERNEL finish_floats(const float* x, const unsigned char* mirrored, const float* shift, const float* scale, T* y,
                     size height, size width, size channels, size out_channels, size column_step, size channel_step) {
  finish(x, mirrored, shift, scale, y, height, width, channels, out_channels, column_step, channel_step);
}
