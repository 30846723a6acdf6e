// Which algorithm the matrix library of a rank uses for each shape of a product, and how ranks come
// to use the same ones: those of the checkpoint that a run continues from, then those of rank 0.
//
// A machine chooses by timing, once (kernels/cuda/blas.h), so two machines may choose differently.
// Sums over the ranks would hide that, but with Muon, where each rank has the whole optimizer
// state, every rank orthogonalizes all matrices itself: other algorithms then make other weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/algorithm_file.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

struct MatmulChoices {
  // What they belong to, as "NVIDIA H200, cuBLASLt 13.0.2"; empty: there are none, as on the CPU.
  std::string library;
  std::map<std::string, cuda::Algorithm> algorithms;  // by the name of the shape
};

// A matrix library that chooses. This one has no choice.
class MatmulChooser {
 public:
  virtual ~MatmulChooser() = default;

  // Those of all shapes so far.
  virtual MatmulChoices Choices() const { return {}; }
  // Uses these from now on where the library accepts them; they belong to it. Not while a CUDA
  // graph is kept.
  virtual void Adopt(const MatmulChoices& /*choices*/) {}
};

// Into a checkpoint's state, and back. What cannot be parsed is left out.
void RecordChoices(const MatmulChoices& choices, v1::CheckpointState* state);
MatmulChoices RecordedChoices(const v1::CheckpointState& state);

// The shapes of `own` that have another algorithm in `others`, or none, in ascending order. Pure.
std::vector<std::string> DifferentShapes(const MatmulChoices& own, const MatmulChoices& others);

// Uses the choices that a checkpoint has. Those of another GPU or library are not used at all,
// since even the same algorithm may give other bits there. Returns what could not be taken over,
// human-readable; empty if nothing.
std::string AdoptRecorded(const v1::CheckpointState& state, MatmulChooser* chooser);

// Lets all ranks use what rank 0 has chosen. A collective; after all ranks have planned the
// products of the job, before the first step. Returns the same text on every rank, which says what
// the lowest rank that cannot do so has instead, and what follows; empty if all can.
// FailedPrecondition on every rank where the weights of the ranks would drift apart.
absl::StatusOr<std::string> AdoptFromRankZero(const v1::JobSpec& spec, MatmulChooser* chooser,
                                              Comm* comm);

}  // namespace nsa::train
