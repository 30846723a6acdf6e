// Matrix products of cuBLASLt against the CPU implementation. A shape always gives the same bits,
// whichever Blas object computes it.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "kernels/cuda/blas.h"
#include "kernels/nn/matmul.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

struct Product {
  int64_t m, n, k;
};
void PrintTo(const Product& p, std::ostream* out) { *out << p.m << "x" << p.n << "x" << p.k; }

class MatmulOnGpu : public GpuTestWith<Product> {};

std::span<const float> In(const std::vector<float>& v) { return v; }

TEST_P(MatmulOnGpu, EqualsTheCpuTruthInEveryForm) {
  const auto [m, n, k] = GetParam();
  const std::vector<float> a = RoundToBf16(Random(m * k, 1)), b = RoundToBf16(Random(k * n, 2)),
                           c = RoundToBf16(Random(m * n, 3));
  const DeviceTensor a_gpu = ToDevice(a), b_gpu = ToDevice(b);
  for (int form = 0; form < 16; ++form) {
    MatmulArgs args{.m = m,
                    .n = n,
                    .k = k,
                    .transpose_a = (form & 1) != 0,
                    .transpose_b = (form & 2) != 0,
                    .a = In(a),
                    .b = In(b),
                    .accumulate = (form & 4) != 0};
    const DType type = (form & 8) != 0 ? DType::kF32 : DType::kBf16;
    SCOPED_TRACE(::testing::Message() << "form " << form);
    std::vector<float> want = args.accumulate ? c : Poisoned(m * n);
    args.c = std::span<float>(want);
    ASSERT_TRUE(Matmul({}, args).ok());
    // fp32 sums of exact products: √k·2^-24 relative to the sum's size, plus the result's rounding.
    ExpectOnGpu({{"c", want, type, type == DType::kF32 ? 1e-5 : 4e-3, 1e-5,
                  args.accumulate ? c : std::vector<float>{}}},
                [&](const std::vector<DeviceTensor>& t) {
                  args.a = a_gpu, args.b = b_gpu, args.c = t[0];
                  return Matmul(Gpu::Get().exec(), args);
                });
    if (!args.accumulate) continue;
    // The added matrix is a separate tensor.
    const DeviceTensor add = type == DType::kF32 ? ToDeviceF32(c) : ToDevice(c);
    args.accumulate = false, args.add = add;
    ExpectOnGpu({{"c", want, type, type == DType::kF32 ? 1e-5 : 4e-3, 1e-5}},
                [&](const std::vector<DeviceTensor>& t) {
                  args.a = a_gpu, args.b = b_gpu, args.c = t[0];
                  return Matmul(Gpu::Get().exec(), args);
                });
  }
}

// Choosing algorithms by timing, with a separate folder for the test.
class TimedMatmul : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    folder_ = (std::filesystem::temp_directory_path() /
               ("nsa-algorithms-" + std::to_string(getpid()) + "-" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                  .string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<cuda::Blas> Open(const std::string& folder) {
    auto blas = cuda::Blas::Create(workspace_.tensor().data, workspace_.bytes(), folder);
    EXPECT_TRUE(blas.ok()) << blas.status();
    return *std::move(blas);
  }
  std::vector<uint8_t> Multiply(cuda::Blas* blas) {
    const DeviceTensor c(args_.m * args_.n, DType::kF32);
    args_.c = c;
    EXPECT_TRUE(blas->Matmul(Gpu::Get().stream(), args_).ok());
    return c.Bytes();
  }
  std::string FileText() const {
    std::string text;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::ifstream file(entry.path());
      text.append(std::istreambuf_iterator<char>(file), {});
    }
    return text;
  }

  const DeviceTensor workspace_{64 << 20, DType::kU8};
  const DeviceTensor a_ = ToDevice(RoundToBf16(Random(768 * 4096, 1))),
                     b_ = ToDevice(RoundToBf16(Random(768 * 4096, 2)));
  // The gradient of a weight: long sums, for which the library has split-K candidates.
  MatmulArgs args_{.m = 768, .n = 768, .k = 4096, .transpose_a = true, .a = a_, .b = b_};
  std::string folder_;
};

TEST_F(TimedMatmul, TheChoiceIsWrittenOnceAndReadByOthers) {
  const auto first = Open(folder_);
  const std::vector<uint8_t> bits = Multiply(first.get());
  const std::string text = FileText();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(first->untimed_shapes(), 0);
  const auto second = Open(folder_);
  EXPECT_TRUE(Identical("c", Multiply(second.get()), bits));
  EXPECT_TRUE(Identical("c again", Multiply(first.get()), bits));
  EXPECT_EQ(FileText(), text);
  EXPECT_EQ(second->untimed_shapes(), 0);
}

TEST_F(TimedMatmul, AnAdoptedAlgorithmGivesTheBitsOfTheRunThatChoseIt) {
  const auto first = Open("");
  Multiply(first.get());
  const auto by_default = first->Algorithms();
  ASSERT_EQ(by_default.size(), 1u);
  // Any other candidate serves: the point is that it is taken over, not which one it is.
  const auto timed = Open(folder_);
  const std::vector<uint8_t> bits = Multiply(timed.get());
  const auto chosen = timed->Algorithms();
  ASSERT_EQ(chosen.begin()->first, by_default.begin()->first);

  first->Adopt(chosen);
  EXPECT_EQ(first->Algorithms(), chosen);
  EXPECT_TRUE(Identical("c", Multiply(first.get()), bits));
  const auto later = Open("");
  later->Adopt(chosen);
  later->Adopt({{"1x2x3-nn-f32", chosen.begin()->second}});
  EXPECT_TRUE(Identical("c of a shape that is new later", Multiply(later.get()), bits));
  EXPECT_EQ(later->Algorithms(), chosen);
  EXPECT_EQ(first->library(), later->library());
}

TEST_F(TimedMatmul, WithoutAnAlgorithmThatTheLibraryTakesAShapeKeepsItsOwn) {
  const auto blas = Open(folder_);
  const std::vector<uint8_t> bits = Multiply(blas.get());
  const auto chosen = blas->Algorithms();
  const std::string shape = chosen.begin()->first;
  blas->Adopt({});
  blas->Adopt({{"1x2x3-nn-f32", chosen.begin()->second}});
  cuda::Algorithm nonsense;
  nonsense.fill(~uint64_t{0});
  blas->Adopt({{shape, nonsense}});
  EXPECT_EQ(blas->Algorithms(), chosen);
  EXPECT_TRUE(Identical("c", Multiply(blas.get()), bits));
}

TEST_F(TimedMatmul, APlannedShapeIsNotTimedInACapture) {
  const auto blas = Open(folder_);
  args_.c = Tensor(nullptr, args_.m * args_.n, DType::kF32);
  ASSERT_TRUE(blas->Plan(Gpu::Get().stream(), {&args_, 1}).ok());
  const std::vector<uint8_t> bits = Multiply(blas.get());
  const DeviceTensor c(args_.m * args_.n, DType::kF32);
  args_.c = c;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CheckCuda(cudaStreamBeginCapture(Gpu::Get().stream(), cudaStreamCaptureModeGlobal), "capture");
  const absl::Status status = blas->Matmul(Gpu::Get().stream(), args_);
  CheckCuda(cudaStreamEndCapture(Gpu::Get().stream(), &graph), "capture");
  ASSERT_TRUE(status.ok()) << status;
  CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  CheckCuda(cudaGraphLaunch(executable, Gpu::Get().stream()), "launch");
  EXPECT_TRUE(Identical("c", c.Bytes(), bits));
  EXPECT_EQ(blas->untimed_shapes(), 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_F(TimedMatmul, AnUnplannedShapeInACaptureIsCounted) {
  const auto blas = Open(folder_);
  const DeviceTensor c(args_.m * args_.n, DType::kF32);
  args_.c = c;
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamBeginCapture(Gpu::Get().stream(), cudaStreamCaptureModeGlobal), "capture");
  const absl::Status status = blas->Matmul(Gpu::Get().stream(), args_);
  CheckCuda(cudaStreamEndCapture(Gpu::Get().stream(), &graph), "capture");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(blas->untimed_shapes(), 1);
  cudaGraphDestroy(graph);
}

TEST_F(TimedMatmul, WithoutAWritableFolderTheFirstChoiceIsTakenAndCounted) {
  const auto blas = Open("/proc/nsa-cannot-be-made");
  const std::vector<uint8_t> bits = Multiply(blas.get());
  EXPECT_EQ(blas->untimed_shapes(), 1);
  const auto again = Open("/proc/nsa-cannot-be-made");
  EXPECT_TRUE(Identical("c", Multiply(again.get()), bits));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MatmulOnGpu,
    ::testing::Values(Product{1, 8, 8}, Product{1, 768, 768}, Product{40, 24, 136},
                      Product{129, 256, 72}, Product{61, 33, 17}, Product{7, 257, 768},
                      Product{1000, 1536, 768}, Product{768, 256, 4096}, Product{64, 64, 2048}),
    [](const auto& param_info) {
      const Product& p = param_info.param;
      return std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
    });

}  // namespace
}  // namespace nsa::testing
