#include "kernels/optimizer/muon.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nn/matmul.h"

namespace nsa {
namespace {

constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

absl::Status Check(const Exec& exec, const MuonArgs& args) {
  const int64_t size = args.parameters.size;
  NSA_RETURN_IF_ERROR(CheckTensor("parameters", args.parameters, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("gradients", args.gradients, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("m", args.m, size, DType::kF32, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("v", args.v, size, DType::kF32, "N"));
  const int64_t multiple = exec.backend == Backend::kCuda ? 8 : 1;
  for (const MuonMatrix& matrix : args.matrices) {
    const bool inside = matrix.offset >= 0 && matrix.rows > 0 && matrix.columns > 0 &&
                        matrix.rows * matrix.columns <= size - matrix.offset;
    const bool aligned = matrix.offset % multiple == 0 && matrix.rows % multiple == 0 &&
                         matrix.columns % multiple == 0;
    if (inside && aligned) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "muon: matrix: ", matrix.rows, " x ", matrix.columns, " at ", matrix.offset, " (inside ",
        size, " elements, multiples of ", multiple, "); list the matrices of the layout"));
  }
  return absl::OkStatus();
}

// The matrices by shape, each shape in batches.
std::vector<std::vector<MuonMatrix>> BatchesOf(std::span<const MuonMatrix> matrices,
                                               int64_t width) {
  std::map<MuonShape, std::vector<MuonMatrix>> shapes;
  for (const MuonMatrix& matrix : matrices) shapes[matrix.shape()].push_back(matrix);
  std::vector<std::vector<MuonMatrix>> batches;
  for (const auto& [shape, all] : shapes) {
    const auto size =
        static_cast<size_t>(MuonBatchSize(shape, static_cast<int64_t>(all.size()), width));
    for (size_t first = 0; first < all.size(); first += size) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      batches.emplace_back(begin,
                           begin + static_cast<std::ptrdiff_t>(std::min(size, all.size() - first)));
    }
  }
  return batches;
}

// The four matrices of a batch in scratch memory.
struct Buffers {
  Tensor x, y;  // [count, p, q]
  Tensor a, b;  // [count, p, p]

  Buffers(void* memory, const MuonShape& s, int64_t count, DType type) {
    const MuonScratch scratch = MuonScratch::Of(s, count, SizeOf(type));
    auto* const bytes = static_cast<std::byte*>(memory);
    x = {bytes + scratch.x, count * s.p * s.q, type};
    y = {bytes + scratch.y, count * s.p * s.q, type};
    a = {bytes + scratch.a, count * s.p * s.p, type};
    b = {bytes + scratch.b, count * s.p * s.p, type};
  }
};

// One iteration: a = x xᵀ, b = kB a + kC a², y = kA x + b x.
std::vector<MatmulArgs> Iteration(const MuonShape& s, int64_t count, const Buffers& t) {
  return {{.m = s.p,
           .n = s.p,
           .k = s.q,
           .transpose_b = true,
           .a = t.x,
           .b = t.x,
           .c = t.a,
           .batch = count},
          {.m = s.p,
           .n = s.p,
           .k = s.p,
           .a = t.a,
           .b = t.a,
           .c = t.b,
           .add = t.a,
           .alpha = kC,
           .beta = kB,
           .batch = count},
          {.m = s.p,
           .n = s.q,
           .k = s.p,
           .a = t.b,
           .b = t.x,
           .c = t.y,
           .add = t.x,
           .beta = kA,
           .batch = count}};
}

// y ← NewtonSchulz(x).
absl::Status NewtonSchulz(const Exec& exec, const MuonShape& s, int64_t count, Buffers t) {
  static_assert(kIterations % 2 == 1, "the last iteration writes y");
  for (int i = 0; i < kIterations; ++i) {
    for (const MatmulArgs& product : Iteration(s, count, t)) {
      NSA_RETURN_IF_ERROR(Matmul(exec, product));
    }
    std::swap(t.x, t.y);
  }
  return absl::OkStatus();
}

float* Part(const Tensor& flat, const MuonMatrix& matrix) {
  return flat.as<float>().data() + matrix.offset;
}

// As cuda::MuonMomentum().
void Momentum(const MuonArgs& args, const MuonMatrix& matrix, float* x) {
  const float* const g = args.gradients.as<float>().data() + matrix.offset;
  float* const m = Part(args.m, matrix);
  const float beta = args.beta1, rest = 1 - args.beta1;
  const int64_t rows = matrix.rows, columns = matrix.columns;
  std::vector<double> squares(static_cast<size_t>(rows));
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * columns; i < (r + 1) * columns; ++i) {
      const float scaled = args.gradient_scale * g[i];
      m[i] = beta * m[i] + rest * scaled;
      const float u = beta * m[i] + rest * scaled;
      squares[r] += static_cast<double>(u) * static_cast<double>(u);
      x[matrix.tall() ? (i - r * columns) * rows + r : i] = u;
    }
  }
  double sum = 0;
  for (const double square : squares) sum += square;
  const auto inverse = static_cast<float>(1 / (std::sqrt(sum) + 1e-7));
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < rows * columns; ++i) x[i] *= inverse;
}

// As cuda::MuonUpdate().
void Update(const MuonArgs& args, const MuonMatrix& matrix, const float* o) {
  float* const w = Part(args.parameters, matrix);
  float* const v = Part(args.v, matrix);
  const int64_t rows = matrix.rows, columns = matrix.columns;
  const auto element = [&](int64_t r, int64_t j) {
    return o[matrix.tall() ? j * rows + r : r * columns + j];
  };
  std::vector<double> factors(static_cast<size_t>(rows)), squares(static_cast<size_t>(rows));
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) {
      sum += static_cast<double>(element(r, j)) * static_cast<double>(element(r, j));
    }
    v[r] = args.beta2 * v[r] + (1 - args.beta2) * static_cast<float>(sum / columns);
    factors[r] = 1 / (std::sqrt(static_cast<double>(v[r])) + 1e-10);
    squares[r] = sum * factors[r] * factors[r];
  }
  double norm = 0;
  for (const double square : squares) norm += square;
  const double size = static_cast<double>(rows * columns);
  const double scale = norm > 0 ? 0.2 * std::sqrt(size / norm) : 0;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const auto factor = static_cast<float>(scale * factors[r]);
    for (int64_t j = 0; j < columns; ++j) {
      float& weight = w[r * columns + j];
      weight -= args.lr * (factor * element(r, j) + args.weight_decay * weight);
    }
  }
}

absl::Status BatchOnCpu(const Exec& exec, const MuonArgs& args, std::span<const MuonMatrix> batch) {
  const MuonShape shape = batch[0].shape();
  const auto count = static_cast<int64_t>(batch.size());
  std::vector<std::byte> memory(
      static_cast<size_t>(MuonScratch::Of(shape, count, sizeof(float)).bytes));
  const Buffers buffers(memory.data(), shape, count, DType::kF32);
  const int64_t size = shape.p * shape.q;
  for (int64_t i = 0; i < count; ++i) {
    Momentum(args, batch[i], buffers.x.as<float>().data() + i * size);
  }
  NSA_RETURN_IF_ERROR(NewtonSchulz(exec, shape, count, buffers));
  for (int64_t i = 0; i < count; ++i) {
    Update(args, batch[i], buffers.y.as<float>().data() + i * size);
  }
  return absl::OkStatus();
}

absl::Status BatchOnGpu(const Exec& exec, const MuonArgs& args, std::span<const MuonMatrix> batch) {
  const MuonShape shape = batch[0].shape();
  const auto count = static_cast<int64_t>(batch.size());
  const MuonScratch scratch = MuonScratch::Of(shape, count, SizeOf(DType::kBf16));
  NSA_RETURN_IF_ERROR(cuda::MuonMomentum(exec, args, batch, scratch));
  NSA_RETURN_IF_ERROR(
      NewtonSchulz(exec, shape, count, Buffers(exec.workspace, shape, count, DType::kBf16)));
  return cuda::MuonUpdate(exec, args, batch, scratch);
}

}  // namespace

int64_t MuonWorkspaceBytes(std::span<const MuonMatrix> matrices) {
  std::map<MuonShape, int64_t> shapes;
  for (const MuonMatrix& matrix : matrices) ++shapes[matrix.shape()];
  return MuonScratchBytes(shapes, SizeOf(DType::kBf16));
}

std::vector<MatmulArgs> MuonProducts(std::span<const MuonMatrix> matrices) {
  std::vector<MatmulArgs> products;
  for (const std::vector<MuonMatrix>& batch : BatchesOf(matrices, SizeOf(DType::kBf16))) {
    const MuonShape shape = batch[0].shape();
    const auto count = static_cast<int64_t>(batch.size());
    // Of an operand only its type is read, and of `add` that there is one.
    for (MatmulArgs product :
         Iteration(shape, count, Buffers(nullptr, shape, count, DType::kBf16))) {
      product.accumulate = product.beta != 1;
      product.add = {};
      products.push_back(product);
    }
  }
  return products;
}

absl::Status Muon(const Exec& exec, const MuonArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("muon");
  const bool on_gpu = exec.backend == Backend::kCuda;
  const int64_t width = SizeOf(on_gpu ? DType::kBf16 : DType::kF32);
  for (const std::vector<MuonMatrix>& batch : BatchesOf(args.matrices, width)) {
    NSA_RETURN_IF_ERROR(on_gpu ? BatchOnGpu(exec, args, batch) : BatchOnCpu(exec, args, batch));
  }
  return absl::OkStatus();
}

}  // namespace nsa
