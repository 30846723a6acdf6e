// The loop. Setting up is in trainer_setup.cc.
#include "worker/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/checkpoint_dir.h"
#include "common/estimate.h"
#include "common/log.h"
#include "common/status.h"
#include "kernels/nn/copy.h"
#include "worker/train/schedule.h"

namespace nsa {
namespace {

Ending StoppedAfter(int64_t step, const Agreement& agreement) {
  return {v1::OUTCOME_STOPPED, agreement.at_step ? "STOPPED_AT_STEP" : "STOPPED",
          absl::StrCat("stopped as asked after step ", step)};
}

Ending DataEndedAfter(int64_t step) {
  return {v1::OUTCOME_COMPLETED, "DATA_EXHAUSTED",
          absl::StrCat("the data ended after step ", step)};
}

}  // namespace

std::optional<absl::Duration> WaitAfter(int failures, const LastSavePatience& patience) {
  absl::Duration wait = patience.first_wait, waited;
  for (int i = 1; i < failures; ++i) {
    waited += wait;
    wait = std::min(2 * wait, patience.longest_wait);
  }
  if (waited + wait > patience.total) return std::nullopt;
  return wait;
}

template <class Body>
auto Trainer::Timed(double* seconds, Body body) {
  const absl::Duration begin = options_.clock->Monotonic();
  auto result = body();
  *seconds += absl::ToDoubleSeconds(options_.clock->Monotonic() - begin);
  return result;
}

v1::WorkerFinished Trainer::Run() {
  const absl::Status ready = SetUp();
  absl::StatusOr<Ending> ending = ready.ok() ? Train() : absl::StatusOr<Ending>(ready);
  Ending last = ending.ok() ? *std::move(ending) : EndingOf(ending.status());
  if (last.outcome == v1::OUTCOME_COMPLETED || last.outcome == v1::OUTCOME_STOPPED) {
    const absl::Status finished = Finish(&last);
    if (!finished.ok()) last = EndingOf(finished);
  }

  v1::WorkerFinished record;
  record.set_outcome(last.outcome);
  record.set_reason(last.reason);
  record.set_text(last.text);
  record.set_step(step());
  page_.SetPhase(Phase::kFinished);
  control_.reset();
  // A peer that is lost writes no shard: nobody may wait for it.
  if (checkpoints_ != nullptr && ExitCodeOf(last.outcome) != 0) {
    checkpoints_->Abandon(last.text);
  }
  checkpoints_.reset();  // its last records come before the last words
  // Without a reporter, setting up failed before there was a step to go on from: nothing of the
  // files is removed.
  if (reporter_ == nullptr) {
    // Whether out_dir is this gang's only rank 0 knows; the others have their journals.
    if (launch_.rank() != 0) out_dir_ = Folder();
    absl::Status opened = OpenReporter(std::numeric_limits<int64_t>::max());
    if (!opened.ok()) {  // its files cannot be opened: there is still the journal
      out_dir_ = Folder();
      opened = OpenReporter(std::numeric_limits<int64_t>::max());
    }
    if (!opened.ok()) spdlog::error("{}", std::string(opened.message()));
  }
  if (reporter_ != nullptr) reporter_->Finished(record);
  return record;
}

absl::StatusOr<Ending> Trainer::Train() {
  NSA_ASSIGN_OR_RETURN(std::optional<Ending> over, StopBeforeTheFirstStep());
  if (over) return *std::move(over);
  step_began_ = options_.clock->Monotonic();
  while (step() < train_.steps()) {
    NSA_ASSIGN_OR_RETURN(const StepResult result, Step(step() + 1));
    step_.store(step() + 1);
    page_.SetStep(step());
    if (const std::optional<Ending> failure = Observe(result)) return *failure;

    const bool last = step() == train_.steps();
    if (ValidatesAfter(train_, step())) NSA_RETURN_IF_ERROR(Evaluate());
    const bool stop = result.agreement.stop && !last;
    const bool data_ended = result.agreement.exhausted && !last;
    if (last || stop || data_ended) {
      NSA_RETURN_IF_ERROR(SaveLast(0));
    } else if (Due(train_.save_every())) {
      NSA_RETURN_IF_ERROR(Save());
    }
    if (stop) return StoppedAfter(step(), result.agreement);
    if (data_ended) return DataEndedAfter(step());
  }
  return Ending{v1::OUTCOME_COMPLETED, "COMPLETED",
                absl::StrCat(train_.steps() == 1 ? "the one step"
                                                 : absl::StrCat("all ", train_.steps(), " steps"),
                             " done")};
}

// A run that goes on from a checkpoint may already be where it was told to end: the gang was lost
// between the last step's checkpoint and its last words. One more step would pass the one asked
// for. Or the data ended there. A new run has nothing to end with yet and does its first step
// whatever was asked.
absl::StatusOr<std::optional<Ending>> Trainer::StopBeforeTheFirstStep() {
  if (step() == 0) return std::nullopt;
  const RankReport mine = {.stop_after = stop_.stop_after(), .exhausted = data_->exhausted()};
  NSA_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, Exchange(comm_.get(), mine));
  const Agreement agreement = Conclude(reports, step());
  if (step() >= train_.steps() || !(agreement.stop || agreement.exhausted)) return std::nullopt;
  // A checkpoint of another out_dir (restart.resume: PATH) becomes one of this.
  if (std::filesystem::path(resumed_from_).parent_path() != CheckpointsDir(train_.out_dir())) {
    NSA_RETURN_IF_ERROR(SaveLast(0));
  }
  return agreement.stop ? StoppedAfter(step(), agreement) : DataEndedAfter(step());
}

// Main path 5/7: train step.
absl::StatusOr<Trainer::StepResult> Trainer::Step(int64_t step) {
  if (on_gpu()) return GpuStepOf(step);
  StepResult result;
  result.record.set_step(step);
  NSA_RETURN_IF_ERROR(Zero(exec_, gradients_.flat()));
  for (int32_t micro = 0; micro < train_.accumulate_grad_batches(); ++micro) {
    NSA_RETURN_IF_ERROR(MicroStep(micro, &result));
  }
  NSA_RETURN_IF_ERROR(Reduce(&result));
  NSA_RETURN_IF_ERROR(Update(step, &result));
  return result;
}

// Data, forward, backward. Gradients add up to those of the mean over the step's tokens, of all
// ranks.
absl::Status Trainer::MicroStep(int32_t micro_step, StepResult* result) {
  v1::StepRecord& record = result->record;
  double data = 0, forward = 0, backward = 0;
  page_.SetMicroStep(micro_step);

  page_.SetPhase(Phase::kData);
  const auto batch = Timed(&data, [&] { return data_->Next(); });
  NSA_RETURN_IF_ERROR(batch.status());
  record.set_data_source(batch->source);
  record.set_data_epoch(batch->epoch);
  if (data_->fell_back()) ++synthetic_batches_;

  page_.SetPhase(Phase::kForward);
  const auto loss = Timed(&forward, [&] {
    return model_->Forward(exec_, {batch->tokens, batch->targets, batch->doc_start});
  });
  NSA_RETURN_IF_ERROR(loss.status());
  record.set_loss(record.loss() + *loss / train_.accumulate_grad_batches());

  page_.SetPhase(Phase::kBackward);
  const float scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec_)));
  NSA_RETURN_IF_ERROR(
      Timed(&backward, [&] { return model_->Backward(exec_, scale, &gradients_); }));

  v1::StepTimes& times = *record.mutable_times();
  times.set_data_seconds(times.data_seconds() + data);
  times.set_forward_seconds(times.forward_seconds() + forward);
  times.set_backward_seconds(times.backward_seconds() + backward);
  return absl::OkStatus();
}

// Sums the gradients over the ranks, once a step, and agrees on everything that all must do alike.
absl::Status Trainer::Reduce(StepResult* result) {
  v1::StepRecord& record = result->record;
  page_.SetPhase(Phase::kReduce);
  double seconds = 0;
  NSA_RETURN_IF_ERROR(Timed(
      &seconds, [&] { return comm_->AllReduceSum("all_reduce_gradients", gradients_.flat()); }));
  NSA_ASSIGN_OR_RETURN(const double norm, optimizer_->GlobalNorm(exec_, gradients_));
  record.set_grad_norm(norm);
  const RankReport mine = {.loss = record.loss(),
                           .finite = std::isfinite(record.loss()) && std::isfinite(norm),
                           .stop_after = stop_.stop_after(),
                           .too_slow = too_slow_.has_value(),
                           .exhausted = data_->exhausted()};
  const auto reports = Timed(&seconds, [&] { return Exchange(comm_.get(), mine); });
  NSA_RETURN_IF_ERROR(reports.status());
  result->agreement = Conclude(*reports, record.step());
  record.set_loss(result->agreement.loss);
  record.set_skipped_nonfinite(!result->agreement.finite);
  record.mutable_times()->set_communication_seconds(seconds);
  return absl::OkStatus();
}

// A step whose loss or gradient is not finite leaves the parameters as they are.
absl::Status Trainer::Update(int64_t step, StepResult* result) {
  v1::StepRecord& record = result->record;
  page_.SetPhase(Phase::kOptimizer);
  record.set_learning_rate(LearningRate(train_, step));
  if (!result->agreement.finite) return absl::OkStatus();
  double seconds = 0;
  NSA_RETURN_IF_ERROR(Timed(&seconds, [&] {
    return optimizer_->Update(exec_, step, record.learning_rate(), record.grad_norm(), gradients_,
                              &parameters_);
  }));
  record.mutable_times()->set_optimizer_seconds(seconds);
  return absl::OkStatus();
}

// Completes and reports the record of the step just done, and asks the guards. Returns how the run
// ends when one of them says so.
std::optional<Ending> Trainer::Observe(const StepResult& result) {
  page_.SetPhase(Phase::kTelemetry);
  const absl::Duration now = options_.clock->Monotonic();
  v1::StepRecord record = result.record;
  record.set_tokens(TokensPerStep(spec_));
  state_.set_total_tokens(state_.total_tokens() + record.tokens());
  record.set_total_tokens(state_.total_tokens());
  const double seconds = absl::ToDoubleSeconds(now - step_began_);
  step_began_ = now;
  record.mutable_times()->set_step_seconds(seconds);
  if (seconds > 0) record.set_tokens_per_second(static_cast<double>(record.tokens()) / seconds);
  ReportMemory(&record);
  for (v1::LayerStats& stats : model_->TakeLayerStats()) *record.add_layers() = std::move(stats);
  if (synthetic_batches_ > 0) (*record.mutable_fallbacks())["data_source"] = synthetic_batches_;
  if (on_gpu() && gpu_step_->graph_fallbacks() > 0) {
    (*record.mutable_fallbacks())["cuda_graph"] = gpu_step_->graph_fallbacks();
  }
  if (on_gpu() && gpu_->untimed_products() > 0) {
    (*record.mutable_fallbacks())["cublaslt_untimed"] = gpu_->untimed_products();
  }
  if (unpinned_ > 0) (*record.mutable_fallbacks())["checkpoint_pinned_memory"] = unpinned_;
  reporter_->Step(record);
  if (std::string trouble = reporter_->trouble(); trouble != shown_trouble_) {
    page_.SetTelemetryError(trouble);
    shown_trouble_ = std::move(trouble);
  }

  const std::vector<v1::LayerStats> layers(record.layers().begin(), record.layers().end());
  if (const auto text = gate_guard_.Observe(record.step(), layers)) {
    reporter_->Event("GATE_COLLAPSE", *text, v1::SEVERITY_WARNING);
  }
  if (!too_slow_) too_slow_ = throughput_guard_.Observe(record.tokens(), absl::Seconds(seconds));
  if (!result.agreement.finite) {
    reporter_->Event("NONFINITE_SKIPPED",
                     absl::StrFormat("step %d: loss %g, gradient norm %g: the update is skipped",
                                     record.step(), record.loss(), record.grad_norm()),
                     v1::SEVERITY_WARNING);
  }
  if (const auto text = nonfinite_guard_->Observe(record.step(), result.agreement.finite)) {
    return Ending{v1::OUTCOME_FAILED_FINAL, "NONFINITE_LOSS", *text};
  }
  if (result.agreement.too_slow) {
    return Ending{v1::OUTCOME_FAILED_FINAL, "THROUGHPUT_TOO_LOW",
                  too_slow_.value_or("another rank's throughput is below the floor")};
  }
  return std::nullopt;
}

absl::StatusOr<double> Trainer::EvalLoss(const Batch& batch) {
  if (on_gpu()) return GpuEvalLoss(batch);
  return model_->Forward(exec_, {batch.tokens, batch.targets, batch.doc_start});
}

// The mean loss over the validation batches, of which every rank takes its rows.
absl::Status Trainer::Evaluate() {
  const int32_t batches = data_->eval_batches();
  if (batches == 0) return absl::OkStatus();
  page_.SetPhase(Phase::kEval);
  const absl::Duration begin = options_.clock->Monotonic();
  double sum = 0;
  for (int32_t i = 0; i < batches; ++i) {
    page_.SetMicroStep(i);
    NSA_ASSIGN_OR_RETURN(const Batch batch, data_->Eval(i));
    NSA_ASSIGN_OR_RETURN(const double loss, EvalLoss(batch));
    sum += loss / batches;
  }
  model_->TakeLayerStats();  // statistics are those of training
  NSA_ASSIGN_OR_RETURN(const std::vector<double> losses,
                       Gather(comm_.get(), "eval", std::span<const double>(&sum, 1)));
  double mean = 0;
  for (const double loss : losses) mean += loss / static_cast<double>(losses.size());
  const absl::Duration taken = options_.clock->Monotonic() - begin;
  step_began_ += taken;

  v1::EvalRecord record;
  record.set_step(step());
  record.set_loss(mean);
  record.set_tokens(int64_t{batches} * train_.batch_size() * train_.seq_len());
  record.set_seconds(absl::ToDoubleSeconds(taken));
  reporter_->Eval(record);
  state_.set_val_loss(mean);
  if (std::isfinite(mean) && (state_.best_val_step() == 0 || mean < state_.best_val_loss())) {
    state_.set_best_val_loss(mean);
    state_.set_best_val_step(step());
  }
  return absl::OkStatus();
}

absl::Status Trainer::Save() { return SaveState({}); }

// The checkpoint that the run ends with, after so many failures to write it.
absl::Status Trainer::SaveLast(int failures) {
  const std::optional<absl::Duration> wait = WaitAfter(failures + 1, options_.last_save);
  return SaveState({.attempt = failures + 1,
                    .then = wait
                                ? absl::StrCat("it is tried again in ", absl::FormatDuration(*wait))
                                : "it is not tried again"});
}

absl::Status Trainer::SaveState(const SaveOptions& how) {
  if (step() == 0) return absl::OkStatus();
  page_.SetPhase(Phase::kCheckpoint);
  v1::CheckpointState state = state_;
  state.set_format_version(1);
  state.set_step(step());
  *state.mutable_data() = data_->cursor();
  state.set_consecutive_nonfinite(nonfinite_guard_->consecutive());
  const absl::Duration begin = options_.clock->Monotonic();
  absl::Status saved = checkpoints_->Save({.layout = &layout_,
                                           .parameters = parameters_.flat(),
                                           .first_moment = optimizer_->first_moment().flat(),
                                           .second_moment = optimizer_->second_moment().flat()},
                                          state, how);
  step_began_ += options_.clock->Monotonic() - begin;
  return saved;
}

// Waits for the last checkpoint, and for all ranks to have done so: no rank ends well before what
// it ends with is on disk. One that cannot be written is tried again by all ranks, since with this
// process would go what was trained since the one before.
absl::Status Trainer::Finish(Ending* ending) {
  if (on_gpu() && options_.time_kernels) PrintKernelTimes();
  for (int failures = 0;;) {
    page_.SetPhase(Phase::kCheckpoint);
    absl::Status drained;
    NSA_ASSIGN_OR_RETURN(const bool written, DrainTogether(&drained));
    if (written) return absl::OkStatus();
    const std::optional<absl::Duration> wait = WaitAfter(++failures, options_.last_save);
    if (!wait) {
      *ending = {v1::OUTCOME_FAILED, "CHECKPOINT_FAILED",
                 drained.ok() ? "another rank could not write the last checkpoint"
                              : std::string(drained.message())};
      return absl::OkStatus();
    }
    Pause(*wait);
    NSA_RETURN_IF_ERROR(SaveLast(failures));
  }
}

// Waits until every rank has written what it saves; whether all could, and this rank's result. One
// rank may write for much longer than the others, which a collective would not wait for: they meet
// again and again and say so, which also shows on their pages that they are alive. Longer than all
// patience with failures they do not: whoever looks for hangs finds the rank that stands still.
absl::StatusOr<bool> Trainer::DrainTogether(absl::Status* drained) {
  constexpr absl::Duration kSlice = absl::Milliseconds(500);
  const absl::Duration end = options_.clock->Monotonic() + options_.last_save.total;
  while (true) {
    std::optional<absl::Status> result = checkpoints_->DrainFor(kSlice);
    if (!result && options_.clock->Monotonic() >= end) result = checkpoints_->Drain();
    std::array<double, 2> any = {result ? 0.0 : 1.0, result && !result->ok() ? 1.0 : 0.0};
    NSA_RETURN_IF_ERROR(comm_->AllReduce("finish", nsa::Reduce::kMax, any));
    if (any[0] != 0) continue;
    *drained = *std::move(result);
    return any[1] == 0;
  }
}

// Alive all the while, for whoever looks for hangs.
void Trainer::Pause(absl::Duration wait) {
  page_.SetPhase(Phase::kCheckpoint);
  const absl::Duration end = options_.clock->Monotonic() + wait;
  for (absl::Duration now; (now = options_.clock->Monotonic()) < end;) {
    page_.Touch();
    absl::SleepFor(std::min(end - now, absl::Seconds(1)));
  }
}

}  // namespace nsa
