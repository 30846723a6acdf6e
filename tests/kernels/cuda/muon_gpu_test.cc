// Muon on the GPU against the CPU implementation. Its products are bf16, so O differs by some
// roundings of 2^-9 in each of fifteen products; momentum is fp32 on both.
#include <vector>

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/muon.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

class MuonOnGpu : public GpuTest {};

struct Problem {
  explicit Problem(std::vector<MuonMatrix> list) : matrices(std::move(list)) {
    int64_t size = 0;
    for (const MuonMatrix& matrix : matrices) {
      size = std::max(size, matrix.offset + matrix.rows * matrix.columns);
    }
    size += 24;  // elements behind the last matrix are left alone
    p = Random(size, 1), g = Random(size, 2, 1e-3f), m = Random(size, 3, 1e-3f);
    v.resize(size);
    for (const MuonMatrix& matrix : matrices) {
      const std::vector<float> rows = Random(matrix.rows, 4, 1e-3f);
      for (int64_t r = 0; r < matrix.rows; ++r) v[matrix.offset + r] = std::abs(rows[r]) + 1e-4f;
    }
  }

  MuonArgs Args() {
    return {.parameters = std::span<float>(p),
            .gradients = std::span<const float>(g),
            .m = std::span<float>(m),
            .v = std::span<float>(v),
            .matrices = matrices,
            .lr = 0.1f,
            .weight_decay = 0.1f,
            .gradient_scale = 0.5f};
  }

  std::vector<MuonMatrix> matrices;
  std::vector<float> p, g, m, v;
};

std::vector<std::vector<MuonMatrix>> MatrixLists() {
  std::vector<MuonMatrix> many;  // more than a batch has, tall and wide in turn
  for (int64_t i = 0; i < 70; ++i) many.push_back({i * 400, i % 2 ? 24 : 16, i % 2 ? 16 : 24});
  return {{{0, 768, 768}, {589824, 128, 768}, {688144, 3072, 768}, {3047456, 768, 3072}},
          {{8, 8, 8}, {96, 8, 40}, {416, 40, 8}},
          {{0, 40, 1000}, {40016, 1000, 40}, {80032, 40, 40}},
          many};
}

TEST_F(MuonOnGpu, EqualsTheCpuTruth) {
  for (const std::vector<MuonMatrix>& matrices : MatrixLists()) {
    SCOPED_TRACE(matrices.size());
    const Problem before(matrices);
    Problem x = before;
    ASSERT_TRUE(Muon({}, x.Args()).ok());
    // What the update adds to p, so that the tolerance is one of the update.
    const auto change = [&](const std::vector<float>& after) {
      std::vector<float> difference(after.size());
      for (size_t i = 0; i < after.size(); ++i) difference[i] = after[i] - before.p[i];
      return difference;
    };
    const DeviceTensor g = ToDeviceF32(before.g);
    const DeviceTensor step = ToDeviceF32({0.2f, 0.5f, 1, 1, 0});
    constexpr double kBf16Products = 15 * 0x1p-9;  // one rounding for each product
    const std::vector<Output> outputs = {{"p", x.p, DType::kF32, 1e-2, 1e-6, before.p},
                                         {"m", x.m, DType::kF32, 1e-6, 1e-9, before.m},
                                         {"v", x.v, DType::kF32, kBf16Products, 1e-7, before.v},
                                         {"half", before.p, DType::kBf16, 1, 1, before.p}};
    for (const bool from_device : {false, true}) {
      SCOPED_TRACE(from_device ? "device_step" : "host step");
      ExpectOnGpu(outputs, [&](const Tensors& t) {
        Problem problem = before;
        MuonArgs args = problem.Args();
        args.parameters = t[0], args.gradients = g, args.m = t[1], args.v = t[2], args.half = t[3];
        if (from_device) {
          args.device_step = step, args.lr_factor = 0.5f;
          args.lr = 0, args.gradient_scale = 0;  // not used
        }
        const absl::Status status = Muon(Gpu::Get().exec(), args);
        const std::vector<float> p = t[0].Floats(), half = t[3].Floats();
        EXPECT_TRUE(Near("change of p", change(p), change(x.p), kBf16Products, 1e-5));
        for (const MuonMatrix& matrix : matrices) {
          for (int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
            const float rounded = static_cast<float>(bf16(p[matrix.offset + i]));
            if (half[matrix.offset + i] != rounded) {
              ADD_FAILURE() << "half[" << matrix.offset + i << "] is not the rounded parameter";
              return status;
            }
          }
        }
        return status;
      });
    }
  }
}

// A step that the device found to be non-finite changes nothing.
TEST_F(MuonOnGpu, SkipsWhenTheDeviceSaysSo) {
  Problem x({{0, 16, 24}, {384, 24, 16}});
  x.g[17] = NAN;
  const DeviceTensor p = ToDeviceF32(x.p), m = ToDeviceF32(x.m), v = ToDeviceF32(x.v),
                     g = ToDeviceF32(x.g), step = ToDeviceF32({1e-3f, NAN, 1, 1, 1}),
                     half = ToDevice(std::vector<float>(x.p.size(), 2.0f));
  MuonArgs args = x.Args();
  args.parameters = p, args.gradients = g, args.m = m, args.v = v, args.half = half;
  args.device_step = step;
  ASSERT_TRUE(Muon(Gpu::Get().exec(), args).ok());
  EXPECT_EQ(p.Floats(), x.p);
  EXPECT_EQ(m.Floats(), x.m);
  EXPECT_EQ(v.Floats(), x.v);
  EXPECT_EQ(half.Floats(), std::vector<float>(x.p.size(), 2.0f));
}

TEST_F(MuonOnGpu, RefusesWidthsThatVectorsDoNotDivideAndTooLittleWorkspace) {
  Problem odd({{0, 12, 16}}), good({{0, 16, 16}});
  EXPECT_EQ(Muon(Gpu::Get().exec(), odd.Args()).code(), absl::StatusCode::kInvalidArgument);
  Exec exec = Gpu::Get().exec();
  exec.workspace_bytes = MuonWorkspaceBytes(good.matrices) - 1;
  EXPECT_EQ(Muon(exec, good.Args()).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace nsa::testing
