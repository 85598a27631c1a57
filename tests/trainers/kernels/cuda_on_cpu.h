// Lets a C++ compiler for the CPU take trainers/kernels/*.cu: one block at a time, its threads in turn.
#include <cmath>

#define KERNEL_OF(blocks) extern "C" void
#define KERNEL KERNEL_OF(2)
#define SHARED static
#define INLINE static inline
#define EACH_THREAD(t) for (int t = 0; t < 256; ++t)

extern "C" {
struct dim { unsigned x, y, z; } blockIdx, gridDim;
}

struct float16 { unsigned short bits; };
#ifdef __F16C__  // the whole of immintrin.h takes a second to read
typedef short Halves __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
INLINE float wide(float16 x) { return __builtin_ia32_vcvtph2ps(Halves{(short)x.bits})[0]; }
INLINE void narrow(float x, float16& y) { y.bits = __builtin_ia32_vcvtps2ph(Floats{x}, 0)[0]; }
#endif
struct bfloat16 { unsigned short bits; };
INLINE float wide(bfloat16 x) {
  unsigned bits = (unsigned)x.bits << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
INLINE void narrow(float x, bfloat16& y) {  // to the nearest, to even between two; no NaN
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  y.bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
INLINE float fused(float x, float y, float z) { return std::fma(x, y, z); }
INLINE double fused(double x, double y, double z) { return std::fma(x, y, z); }
