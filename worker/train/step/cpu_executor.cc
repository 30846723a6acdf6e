// The step on the CPU: every call computes at once.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "common/job/data_source.h"
#include "kernels/nn/copy.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/parameters_hash.h"
#include "worker/train/comm/stop.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/step/executor.h"
#include "worker/train/step/parameters_check.h"
#include "worker/train/step/ranks/context_ranks.h"
#include "worker/train/step/ranks/share_pieces.h"

namespace nsa::train {
namespace {

class CpuExecutor final : public StepExecutor {
 public:
  explicit CpuExecutor(const ExecutorOptions& options)
      : options_(options), spec_(options.launch->spec()) {
    exec_.on_kernel_context = options_.page;
    exec_.on_kernel = [](void* page, const char* name) {
      static_cast<StatusPage*>(page)->SetKernel(name);
    };
  }

  absl::Status Open() override {
    context_ = ContextOverTcp(options_.comm, ContextOf(spec_));
    NSA_ASSIGN_OR_RETURN(state_, ModelState::Create(spec_, options_.layout, Backend::kCpu,
                                                    options_.launch->world_size(),
                                                    options_.launch->rank(), context_.get()));
    state_->model->set_on_layer([page = options_.page](int32_t layer) { page->SetLayer(layer); });
    if (state_->weights.has_value()) {
      state_->model->set_before_part(
          [this](int32_t part, Model::Pass pass) { return GatherPart(part, pass); });
    }
    return absl::OkStatus();
  }

  // Forward and backward. Losses and gradients add up to those of the mean over all positions of
  // the step, of all ranks; CompleteGradients() weights them.
  absl::Status AddMicroBatch(int32_t micro_batch, const TokenBatch& batch,
                             v1::StepRecord* record) override {
    if (micro_batch == 0) {
      NSA_RETURN_IF_ERROR(Zero(exec_, state_->gradients.flat()));
      sequence_losses_.clear();
    }
    double forward = 0, backward = 0;
    communication_ = 0;
    options_.page->SetPhase(Phase::kForward);
    const auto loss =
        Timed(*options_.clock, &forward, [&] { return state_->model->Forward(exec_, batch); });
    NSA_RETURN_IF_ERROR(loss.status());
    const double in_forward = communication_;
    const double share =
        static_cast<double>(PredictedOf(batch.targets)) / static_cast<double>(batch.targets.size());
    record->set_loss(record->loss() + *loss * share / spec_.train().accumulate_grad_batches());

    if (!spec_.data().mix().empty()) {
      AppendSequenceMeans(state_->model->token_losses(), spec_.train().seq_len() / ContextOf(spec_),
                          &sequence_losses_);
    }
    options_.page->SetPhase(Phase::kBackward);
    const float scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec_)));
    NSA_RETURN_IF_ERROR(Timed(*options_.clock, &backward, [&] {
      return state_->window.has_value() ? BackwardToShares(scale)
                                        : state_->model->Backward(exec_, scale, &state_->gradients);
    }));

    v1::StepTimes& times = *record->mutable_times();
    times.set_forward_seconds(times.forward_seconds() + forward - in_forward);
    times.set_backward_seconds(times.backward_seconds() + backward - communication_ + in_forward);
    times.set_communication_seconds(times.communication_seconds() + communication_);
    return absl::OkStatus();
  }

  absl::Status CompleteGradients(v1::StepRecord* record) override {
    options_.page->SetPhase(Phase::kReduce);
    double seconds = record->times().communication_seconds();
    if (!state_->window.has_value()) {
      NSA_RETURN_IF_ERROR(Timed(*options_.clock, &seconds, [&] { return SumGradients(); }));
    }
    if (const double weight = GradientWeight(spec_, *record); weight != 1) {
      record->set_loss(record->loss() * weight);
      for (float& g : state_->gradients.flat()) g *= static_cast<float>(weight);
    }
    NSA_ASSIGN_OR_RETURN(const double norm, Norm());
    record->set_grad_norm(norm);
    record->set_skipped_nonfinite(!std::isfinite(record->loss()) || !std::isfinite(norm));
    record->mutable_times()->set_communication_seconds(seconds);
    return absl::OkStatus();
  }

  std::vector<double> SequenceLosses() const override { return sequence_losses_; }

  absl::Status Update(bool finite, v1::StepRecord* record) override {
    options_.page->SetPhase(Phase::kOptimizer);
    if (!finite) return absl::OkStatus();
    double seconds = 0;
    NSA_RETURN_IF_ERROR(Timed(*options_.clock, &seconds, [&] {
      return state_->optimizer.Update(exec_, record->step(), record->learning_rate(),
                                      record->grad_norm(), state_->gradients, &state_->parameters);
    }));
    v1::StepTimes& times = *record->mutable_times();
    times.set_optimizer_seconds(seconds);
    if (!state_->sharded || state_->weights.has_value()) return absl::OkStatus();
    double gathering = times.communication_seconds();
    NSA_RETURN_IF_ERROR(Timed(*options_.clock, &gathering, [&] {
      return options_.comm->AllGather("gather_weights", state_->parameters.flat(),
                                      state_->shares.cuts());
    }));
    times.set_communication_seconds(gathering);
    return absl::OkStatus();
  }

  int32_t eval_batches_at_once() const override { return 1; }

  absl::StatusOr<double> EvalLoss(std::span<const TokenBatch> batches) override {
    return state_->model->Forward(exec_, batches.front());
  }

  absl::Status Audit(int64_t step) override { return state_->model->AuditAttention(exec_, step); }

  absl::StatusOr<uint64_t> ParametersHash() override {
    uint64_t hash = 0;
    NSA_RETURN_IF_ERROR(nsa::ParametersHash(exec_, {.values = state_->parameters.flat(),
                                                    .first = state_->parameters.slice().begin,
                                                    .hash = &hash}));
    if (!state_->weights.has_value()) return hash;
    NSA_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, ExchangeHashes(options_.comm, hash));
    return std::accumulate(all.begin(), all.end(), uint64_t{0});
  }

  void AddStatistics(v1::StepRecord* record) override {
    record->set_memory_allocated_bytes(ResidentBytes());
    record->set_memory_reserved_bytes(PeakResidentBytes());
    for (v1::LayerStats& stats : state_->model->TakeLayerStats()) {
      *record->add_layers() = std::move(stats);
    }
  }

  ModelState& state() override { return *state_; }
  Exec exec() const override { return exec_; }
  SnapshotAccess snapshot_access() override { return {}; }

  absl::Status ReadState(StatePart part, const Slice& wanted, bool local,
                         std::span<float> to) override {
    const Arena& arena = PartOf(*state_, part);
    const auto copy = [&to, &wanted](std::span<const float> from, const Slice& at) {
      std::ranges::copy(from, to.begin() + (at.begin - wanted.begin));
    };
    const bool everywhere = part == StatePart::kParameters && !state_->weights.has_value();
    if (local || everywhere) {  // this rank has what it wants
      if (!wanted.empty()) copy(arena.of(wanted), wanted);
      return absl::OkStatus();
    }
    std::vector<float> piece;
    return ForEachPiece(state_->shares, kPieceFloats, [&](int32_t rank, const Slice& at) {
      piece.resize(at.size());
      if (rank == state_->rank) std::ranges::copy(arena.of(at), piece.begin());
      NSA_RETURN_IF_ERROR(
          options_.comm->Broadcast("checkpoint", rank, std::as_writable_bytes(std::span(piece))));
      const Slice common = at.Common(wanted);
      if (!common.empty()) {
        copy(std::span(piece).subspan(common.begin - at.begin, common.size()), common);
      }
      return absl::OkStatus();
    });
  }

  std::string Description() const override { return CpuDescription(options_.threads); }
  int64_t graph_captures() const override { return 0; }
  void PrintKernelTimes(int64_t) const override {}

 private:
  static constexpr int64_t kPieceFloats = 1 << 20;

  // The sums over the ranks: of all gradients, or of those of this rank's share. Of gradients that
  // backward makes in a window they are there already.
  absl::Status SumGradients() {
    const std::span<float> gradients = state_->gradients.flat();
    const std::span<const int64_t> cuts = state_->shares.cuts();
    return state_->sharded
               ? options_.comm->ReduceScatterSum("reduce_gradients", gradients, cuts, wire())
               : options_.comm->AllReduceSum("all_reduce_gradients", gradients, cuts, wire());
  }

  Wire wire() const {
    return SendsBf16Gradients(spec_, options_.launch->world_size()) ? Wire::kBf16 : Wire::kF32;
  }

  // Brings the weights of a part together in the window, from the ranks that have them.
  absl::Status GatherPart(int32_t part, Model::Pass pass) {
    WeightWindow& window = *state_->weights;
    window.MoveTo(part);
    if (GathersBefore(part, pass, window.last(), /*ahead=*/false).empty()) return absl::OkStatus();
    Arena& arena = *window.arena();
    const Slice own = arena.slice().Common(state_->share());
    if (!own.empty()) std::ranges::copy(state_->parameters.of(own), arena.of(own).begin());
    return Timed(*options_.clock, &communication_, [&] {
      return options_.comm->AllGather("gather_weights", arena.flat(),
                                      state_->shares.CutsOf(arena.slice()));
    });
  }

  // Backward into the window, part by part.
  absl::Status BackwardToShares(float scale) {
    GradientWindow& window = *state_->window;
    size_t part = 0;
    NSA_RETURN_IF_ERROR(OpenWindow(part));
    return state_->model->Backward(exec_, scale, window.arena(), [&](int64_t) -> absl::Status {
      NSA_RETURN_IF_ERROR(Timed(*options_.clock, &communication_, [&] { return SumWindow(); }));
      return ++part < window.parts().size() ? OpenWindow(part) : absl::OkStatus();
    });
  }

  absl::Status OpenWindow(size_t part) {
    state_->window->MoveTo(part);
    return Zero(exec_, state_->window->arena()->flat());
  }

  // The sums over the ranks of the window's gradients, each added to what the rank of its share
  // has.
  absl::Status SumWindow() {
    Arena& arena = *state_->window->arena();
    const std::vector<int64_t> cuts = state_->shares.CutsOf(arena.slice());
    NSA_RETURN_IF_ERROR(
        options_.comm->ReduceScatterSum("reduce_gradients", arena.flat(), cuts, wire()));
    const Slice own = arena.slice().Common(state_->share());
    return own.empty() ? absl::OkStatus() : AddTo(exec_, arena.of(own), state_->gradients.of(own));
  }

  // The norm of all gradients, from the sums of squares of all shares.
  absl::StatusOr<double> Norm() {
    const Arena& gradients = state_->gradients;
    std::vector<double> sums(state_->shares.ranks());
    for (int32_t rank = 0; rank < state_->shares.ranks(); ++rank) {
      if (state_->sharded && rank != state_->rank) continue;
      const Slice share = state_->shares.of(rank);
      NSA_RETURN_IF_ERROR(SquareSum(exec_, {.values = gradients.of(share), .sum = &sums[rank]}));
    }
    if (state_->sharded) {
      const double own = sums[state_->rank];
      NSA_ASSIGN_OR_RETURN(sums, Gather(options_.comm, "gradient_norm", {&own, 1}));
    }
    float norm = 0;
    NSA_RETURN_IF_ERROR(NormOfSums(exec_, {.sums = sums.data(),
                                           .count = static_cast<int32_t>(sums.size()),
                                           .norm = std::span<float>(&norm, 1)}));
    return norm;
  }

  const ExecutorOptions options_;
  const v1::JobSpec& spec_;
  Exec exec_;
  std::unique_ptr<ContextGroup> context_;  // null without context parallelism
  std::unique_ptr<ModelState> state_;
  std::vector<double> sequence_losses_;  // of this step, with data.mix
  double communication_ = 0;             // seconds of collectives within this micro-batch
};

}  // namespace

int64_t PredictedOf(std::span<const int32_t> targets) {
  return std::ranges::count_if(targets, [](int32_t target) { return target >= 0; });
}

double GradientWeight(const v1::JobSpec& spec, const v1::StepRecord& record) {
  if (!LearnsAnswers(spec.data())) return 1;
  if (record.answer_tokens() == 0) return 0;
  return static_cast<double>(TokensPerStep(spec)) / static_cast<double>(record.answer_tokens());
}

void AppendSequenceMeans(std::span<const float> token_losses, int32_t tokens,
                         std::vector<double>* means) {
  for (; !token_losses.empty(); token_losses = token_losses.subspan(tokens)) {
    const auto sequence = token_losses.first(tokens);
    means->push_back(std::accumulate(sequence.begin(), sequence.end(), 0.0) / tokens);
  }
}

const Arena& PartOf(const ModelState& state, StatePart part) {
  if (part == StatePart::kParameters) return state.parameters;
  return part == StatePart::kFirstMoment ? state.optimizer.first_moment()
                                         : state.optimizer.second_moment();
}

std::string CpuDescription(int threads) {
  return absl::StrFormat("cpu, %d thread%s", threads, threads == 1 ? "" : "s");
}

std::unique_ptr<StepExecutor> MakeCpuExecutor(const ExecutorOptions& options) {
  return std::make_unique<CpuExecutor>(options);
}

}  // namespace nsa::train
