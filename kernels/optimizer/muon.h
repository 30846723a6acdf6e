// Muon with a variance of each row (NorMuon: Li et al. 2025, arXiv 2510.05491, algorithm 1) for the
// weight matrices [rows, columns] of a model; a row has the weights of one output:
//
//   g' = gradient_scale · g     M ← β1 M + (1 − β1) g'     U = β1 M + (1 − β1) g'
//   O = NewtonSchulz(U / (‖U‖ + 1e-7))
//   v_r ← β2 v_r + (1 − β2) · mean_j O_rj²     Ô_rj = O_rj / (√v_r + 1e-10)
//   W ← W − lr · ( 0.2 √(rows · columns) / ‖Ô‖ · Ô + decay · W )
//
// ‖·‖ is the Frobenius norm. NewtonSchulz() repeats X ← a X + (b A + c A²) X with A = X Xᵀ five
// times, with the coefficients of Jordan (2024, kellerjordan.github.io/posts/muon), which bring
// singular values between 0.003 and 1 to about 0.7 to 1.2: O is nearly the orthogonal matrix next
// to U. A matrix with more rows than columns is transposed for it. U looks one step ahead
// (Nesterov), as in the authors' code; algorithm 1 has M in its place. The elements of an update
// have a root mean square of 0.2 lr, about what AdamW has, so learning rates and weight decay of
// AdamW can be used (Liu et al. 2025, arXiv 2502.16982). A matrix whose gradients have all been 0
// only decays.
//
// On the CPU everything is fp32. On a GPU the products are bf16 with sums in fp32, momentum and
// variance are fp32. Sums have a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/estimate/muon_plan.h"
#include "kernels/dtype.h"
#include "kernels/exec.h"
#include "kernels/matmul_args.h"
#include "kernels/tensor.h"

namespace nsa {

// A matrix within the flat buffers.
struct MuonMatrix {
  int64_t offset = 0;  // of its first element; on CUDA a multiple of 8
  int64_t rows = 0;
  int64_t columns = 0;

  MuonShape shape() const { return MuonShape::Of(rows, columns); }
  bool tall() const { return rows > columns; }
};

struct MuonArgs {
  Tensor parameters;      // fp32 [N], the matrices are updated
  ConstTensor gradients;  // fp32 [N]
  Tensor m;               // fp32 [N], momentum; the matrices are updated
  Tensor v;               // fp32 [N]; the first `rows` elements of each matrix are updated
  std::span<const MuonMatrix> matrices;  // host memory; on CUDA widths are multiples of 8

  float lr = 0;
  float beta1 = 0.95f;
  float beta2 = 0.95f;
  float weight_decay = 0;
  float gradient_scale = 1;  // the clipping factor

  // CUDA only. `half`: bf16 [N], the matrices are overwritten with the rounded parameters.
  // `device_step`: fp32 [5], an AdamWStep in device memory (adamw.h); its lr times `lr_factor`, its
  // gradient_scale and its skip are used instead of `lr` and `gradient_scale`.
  Tensor half;
  ConstTensor device_step;
  float lr_factor = 1;
};

// InvalidArgument when sizes or types differ or a matrix is not inside [0, N). On CUDA it needs
// MuonWorkspaceBytes() of Exec::workspace.
absl::Status Muon(const Exec& exec, const MuonArgs& args);

// Exec::workspace of the largest batch on CUDA.
int64_t MuonWorkspaceBytes(std::span<const MuonMatrix> matrices);

// The products of all batches on CUDA, without memory, for cuda::Blas::Plan().
std::vector<MatmulArgs> MuonProducts(std::span<const MuonMatrix> matrices);

}  // namespace nsa

// The parts that differ on a GPU (muon.cu), for the matrices of one batch. Muon() has checked the
// arguments; `scratch` lies in Exec::workspace.
namespace nsa::cuda {

// M, and x ← U / ‖U‖, transposed where the matrix is tall.
absl::Status MuonMomentum(const Exec& exec, const MuonArgs& args, std::span<const MuonMatrix> batch,
                          const MuonScratch& scratch);

// v and the parameters, from O in y.
absl::Status MuonUpdate(const Exec& exec, const MuonArgs& args, std::span<const MuonMatrix> batch,
                        const MuonScratch& scratch);

}  // namespace nsa::cuda
