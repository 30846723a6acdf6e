// The gate refuses a tensor of the wrong size, of the wrong type or without memory.
#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nsa/gate/gate.h"
#include "tests/kernels/nsa/checked_call.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const int64_t kRows = kShape.k_size() / kShape.d_k;  // B·S·G

// The tensors of the gate's parameters, or of their gradients.
std::array<Tensor, 4> TakeParams(Memory& memory) {
  const int64_t hidden = GateHidden(kShape.d_k);
  return {memory.Take(hidden * kShape.d_k), memory.Take(hidden), memory.Take(3 * hidden),
          memory.Take(3)};
}

std::array<ConstTensor, 3> TakeBranches(Memory& memory) {
  const auto branch = [&] { return memory.Take(kShape.o_size()); };
  return {branch(), branch(), branch()};
}

TEST(GateCheck, Forward) {
  Memory memory;
  const auto p = TakeParams(memory);
  Call<GateArgs> forward{.args = {.shape = kShape,
                                  .q = memory.Take(kShape.q_size()),
                                  .params = {p[0], p[1], p[2], p[3]},
                                  .o_branch = TakeBranches(memory),
                                  .gates = memory.Take(kRows * 3),
                                  .o = memory.Take(kShape.o_size()),
                                  .gate_stats = memory.Take(kGateStats),
                                  .q_mean = memory.Take(kShape.k_size())},
                         .run = nsa::Gate};
  GateParams& params = forward.args.params;
  forward.inputs = {{"q", &forward.args.q},
                    {"params.fc1_w", &params.fc1_w},
                    {"params.fc1_b", &params.fc1_b},
                    {"params.fc2_w", &params.fc2_w},
                    {"params.fc2_b", &params.fc2_b}};
  forward.outputs = {{"gates", &forward.args.gates},
                     {"o", &forward.args.o},
                     {"gate_stats", &forward.args.gate_stats},
                     {"q_mean", &forward.args.q_mean}};
  ExpectEveryTensorIsChecked(forward);
}

TEST(GateCheck, Backward) {
  Memory memory;
  const auto p = TakeParams(memory), g = TakeParams(memory);
  const auto branch = [&] { return memory.Take(kShape.o_size()); };
  Call<GateBackwardArgs> backward{.args = {.shape = kShape,
                                           .q_mean = memory.Take(kShape.k_size()),
                                           .params = {p[0], p[1], p[2], p[3]},
                                           .o_branch = TakeBranches(memory),
                                           .gates = memory.Take(kRows * 3),
                                           .d_o = branch(),
                                           .d_o_branch = {branch(), branch(), branch()},
                                           .dq_mean = memory.Take(kShape.k_size()),
                                           .grads = {g[0], g[1], g[2], g[3]}},
                                  .run = nsa::GateBackward};
  GateGrads& grads = backward.args.grads;
  backward.inputs = {{"q_mean", &backward.args.q_mean},
                     {"gates", &backward.args.gates},
                     {"d_o", &backward.args.d_o}};
  backward.outputs = {{"d_o_branch", &backward.args.d_o_branch[1]},
                      {"dq_mean", &backward.args.dq_mean},
                      {"grads.fc1_w", &grads.fc1_w},
                      {"grads.fc1_b", &grads.fc1_b},
                      {"grads.fc2_w", &grads.fc2_w},
                      {"grads.fc2_b", &grads.fc2_b}};
  ExpectEveryTensorIsChecked(backward);

  backward.args.shape = kShape;
  backward.args.lse[1] = memory.Take(Lse(kShape));
  EXPECT_THAT(nsa::GateBackward({}, backward.args),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("lse: ")));
}

TEST(GateCheck, AddMeanGradient) {
  Memory memory;
  Call<AddMeanGradientArgs> add{.args = {.shape = kShape,
                                         .dq_mean = memory.Take(kShape.k_size()),
                                         .dq = memory.Take(kShape.q_size())},
                                .run = nsa::AddMeanGradient};
  add.inputs = {{"dq_mean", &add.args.dq_mean}};
  add.outputs = {{"dq", &add.args.dq}};
  ExpectEveryTensorIsChecked(add);
}

// On CUDA the gate's backward exchanges log-sum-exps and statistics of the rows with the branches
// instead of gradients of their outputs.
TEST(GateCheck, BackwardOnCuda) {
  Memory memory;
  const int64_t hidden = GateHidden(kShape.d_k);
  const auto half = [&](int64_t size) { return memory.Take(size, DType::kBf16); };
  GateBackwardArgs args{
      .shape = kShape,
      .q_mean = memory.Take(kShape.k_size()),
      .params = {half(hidden * kShape.d_k), half(hidden), half(2 * hidden), half(2)},
      .o_branch = {half(kShape.o_size()), {}, half(kShape.o_size())},
      .gates = memory.Take(kRows * 2),
      .d_o = half(kShape.o_size()),
      .lse = {memory.Take(Lse(kShape)), {}, memory.Take(Lse(kShape))},
      .stats = {memory.Take(2 * Lse(kShape)), {}, memory.Take(2 * Lse(kShape))},
      .dq_mean = half(kShape.k_size()),
      .grads = {memory.Take(hidden * kShape.d_k), memory.Take(hidden), memory.Take(2 * hidden),
                memory.Take(2)}};
  const Exec cuda{.backend = Backend::kCuda};
  EXPECT_THAT(GateBackward(cuda, args).message(), HasSubstr("CUDA"));  // this build has none
  const auto expect_checked = [&](const char* name, auto* tensor) {
    const auto right = *tensor;
    for (const auto& wrong : Spoilt(right)) {
      *tensor = wrong;
      EXPECT_THAT(GateBackward(cuda, args),
                  StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(name)));
    }
    *tensor = right;
  };
  expect_checked("lse: ", &args.lse[2]);
  expect_checked("stats: ", &args.stats[0]);
  args.d_o_branch[0] = half(kShape.o_size());
  EXPECT_THAT(GateBackward(cuda, args),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("d_o_branch: ")));
}

}  // namespace
}  // namespace nsa::testing
