// Columns by heads on the GPU against the plain loops of the CPU. Outputs start as NaN, and each
// case runs twice to check for equal bits.
#include <numeric>

#include "kernels/nsa/layer/head_parts.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

struct Case {
  int32_t parts;
  int64_t rows;
  std::vector<int64_t> widths;
};

// q, three keys and three values of m7c; one branch; o; heads of 128 and 32; keys of 192 with
// values of 128; narrow ones.
const Case kCases[] = {{2, 1111, {768, 128, 128, 128, 128, 128, 128}},
                       {2, 4096, {768, 128, 128}},
                       {4, 777, {2048}},
                       {8, 333, {4096, 1024, 256, 1024, 256}},
                       {2, 555, {3072, 384, 256, 384, 256, 384, 256}},
                       {1, 5, {64, 16, 16}},
                       {2, 1, {32, 32, 32}}};

class HeadPartsOnGpu : public GpuTest {};

TEST_F(HeadPartsOnGpu, AreThoseOfTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.parts << " parts of " << c.rows << " rows");
    const int64_t size = c.rows * std::accumulate(c.widths.begin(), c.widths.end(), int64_t{0});
    const std::vector<float> whole = RoundToBf16(Random(size, 1));
    std::vector<float> split = Poisoned(size);
    SplitHeadsArgs forth{.parts = c.parts, .rows = c.rows, .widths = c.widths};
    forth.whole = Span(whole), forth.split = Span(split);
    ASSERT_TRUE(SplitHeads({}, forth).ok());
    ExpectOnGpu({{"split", split, DType::kBf16, 0, 0}}, [&](const auto& t) {
      const DeviceTensor on_gpu = ToDevice(whole);
      forth.whole = on_gpu, forth.split = t[0];
      const absl::Status status = SplitHeads(Gpu::Get().exec(), forth);
      CheckCuda(cudaDeviceSynchronize(), "split");  // before the source is freed
      return status;
    });
    ExpectOnGpu({{"whole", whole, DType::kBf16, 0, 0}}, [&](const auto& t) {
      const DeviceTensor on_gpu = ToDevice(split);
      JoinHeadsArgs back{.parts = c.parts, .rows = c.rows, .widths = c.widths};
      back.split = on_gpu, back.whole = t[0];
      const absl::Status status = JoinHeads(Gpu::Get().exec(), back);
      CheckCuda(cudaDeviceSynchronize(), "join");
      return status;
    });
  }
}

TEST_F(HeadPartsOnGpu, RefusesColumnsThatAreNotSixteenBytesWide) {
  const DeviceTensor a(2 * 24, DType::kBf16), b(2 * 24, DType::kBf16);
  const std::vector<int64_t> widths = {24};
  const absl::Status status = SplitHeads(
      Gpu::Get().exec(), {.parts = 2, .rows = 2, .widths = widths, .whole = a, .split = b});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace nsa::testing
