// What the kernels share. They are compiled after it, as one text, for each MEMORY and WIDTH:
//
// T: type in memory, float, double, float16 or bfloat16; A: type in registers, float or double. V: values that a thread
// accesses at once, 16 bytes where that divides their number. Blocks have THREADS threads; sums are double.
//
// The tests compile the same text for the CPU, where the threads of a block run one after another through each
// EACH_THREAD: they exchange values by SHARED memory, between two EACH_THREADs only. There is no other barrier.

#ifndef EACH_THREAD
#define KERNEL_OF(blocks) extern "C" __global__ void __launch_bounds__(256, blocks) // that fit on a multiprocessor
#define KERNEL KERNEL_OF(2)
#define SHARED __shared__
#define INLINE static __device__ __forceinline__
#define EACH_THREAD(t) for (int t = threadIdx.x, once = 1; once; once = 0, __syncthreads())
#define INFINITY __int_as_float(0x7f800000)
struct float16 { unsigned short bits; };
INLINE float wide(float16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
INLINE void narrow(float x, float16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
struct bfloat16 { unsigned short bits; };
INLINE float wide(bfloat16 x) { return __int_as_float(x.bits << 16); }
INLINE void narrow(float x, bfloat16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
INLINE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
INLINE double fused(double x, double y, double z) { return __fma_rn(x, y, z); }
#endif

typedef long long size;
typedef MEMORY T;
typedef REGISTERS A;
#define READ const T* __restrict__
#define VECTOR const A* __restrict__
enum { THREADS = 256, V = WIDTH };

INLINE float wide(float x) { return x; }
INLINE double wide(double x) { return x; }
INLINE void narrow(float x, float& y) { y = x; }
INLINE void narrow(double x, double& y) { y = x; }
INLINE float exponential(float x) { return expf(x); }
INLINE double exponential(double x) { return exp(x); }
INLINE float root(float x) { return sqrtf(x); }
INLINE double root(double x) { return sqrt(x); }

struct alignas(sizeof(T) * V) Values { T at[V]; };

INLINE Values load(const T* x, size at) { return *(const Values*)(x + at); }
INLINE void store(T* x, size at, const Values& values) { *(Values*)(x + at) = values; }
