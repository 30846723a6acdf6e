// The training loop. The setup is in trainer_setup.cc.
#include "worker/train/step/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "common/estimate/passes.h"
#include "common/estimate/schedule.h"
#include "common/job/data_source.h"
#include "worker/train/step/parameters_check.h"
#include "worker/train/step/ranks/group_statistics.h"

namespace nsa::train {
namespace {

Ending StoppedAfter(int64_t step, const Agreement& agreement) {
  return {v1::OUTCOME_STOPPED, Word(agreement.at_step ? Reason::kStoppedAtStep : Reason::kStopped),
          absl::StrCat("stopped as asked after step ", step)};
}

Ending DataEndedAfter(int64_t step) {
  return {v1::OUTCOME_COMPLETED, Word(Reason::kDataExhausted),
          absl::StrCat("the data ended after step ", step)};
}

Ending CompletedAfter(int64_t steps) {
  return {v1::OUTCOME_COMPLETED, Word(Reason::kCompleted),
          steps == 1 ? "the one step done" : absl::StrCat("all ", steps, " steps done")};
}

bool SavesAfter(const v1::TrainSpec& train, int64_t step) {
  return train.save_every() > 0 && step % train.save_every() == 0;
}

bool AuditsAfter(const v1::NsaSpec& nsa, int64_t step) {
  return nsa.audit_every() > 0 && step % nsa.audit_every() == 0;
}

TokenBatch TokensOf(const Batch& batch) {
  return {.tokens = batch.tokens, .targets = batch.targets, .doc_start = batch.doc_start};
}

}  // namespace

v1::WorkerFinished Trainer::Run() {
  const absl::Status ready = SetUp();
  absl::StatusOr<Ending> ending = ready.ok() ? Train() : absl::StatusOr<Ending>(ready);
  profiler_.Close(/*healthy=*/ending.ok());
  if (ending.ok()) ending = Finish(*ending);
  const Ending last = ending.ok() ? *std::move(ending) : EndingOf(ending.status());

  v1::WorkerFinished record;
  record.set_outcome(last.outcome);
  record.set_reason(last.reason);
  record.set_text(last.text);
  record.set_step(step());
  Report(record);
  return record;
}

absl::StatusOr<Ending> Trainer::Train() {
  NSA_ASSIGN_OR_RETURN(std::optional<Ending> over, StopBeforeTheFirstStep());
  if (over) return *std::move(over);
  step_began_ = options_.clock->Monotonic();
  while (step() < train_.steps()) {
    profiler_.StepBegins(step() + 1);
    NSA_ASSIGN_OR_RETURN(const StepResult result, Step(step() + 1));
    step_.store(step() + 1);
    page_.SetStep(step());
    if (const std::optional<Ending> failure = Observe(result)) return *failure;

    const bool ends = EndsAfter(step(), result.agreement);
    const bool validates = ValidatesAfter(train_, step()) || (ends && train_.eval_every() > 0);
    if (validates) {
      NSA_RETURN_IF_ERROR(Evaluate());
      NSA_RETURN_IF_ERROR(WriteSamples());
    }
    if (ends && !result.agreement.stop) {
      if (std::optional<Ending> failure = guards_->ObserveEnd()) return *std::move(failure);
    }
    if (ends || (SavesAfter(train_, step()) && !guards_->diverging())) {
      NSA_RETURN_IF_ERROR(Save(/*last=*/ends));
    }
    if (ends && step() < train_.steps()) {
      return result.agreement.stop ? StoppedAfter(step(), result.agreement)
                                   : DataEndedAfter(step());
    }
  }
  return CompletedAfter(train_.steps());
}

// Ends a resumed run that has already reached the step after which it was asked to stop, or the end
// of its data. This happens when the gang was lost between its last checkpoint and its last record;
// one more step would be one too many. A new run always does its first step, because it has nothing
// to save before that.
absl::StatusOr<std::optional<Ending>> Trainer::StopBeforeTheFirstStep() {
  if (step() == 0) return std::nullopt;
  const RankReport mine = {.stop_after = stop_.stop_after(), .exhausted = data_->exhausted()};
  NSA_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, Exchange(comm_.get(), mine));
  const Agreement agreement = Conclude(reports, step());
  if (step() >= train_.steps() || !(agreement.stop || agreement.exhausted)) return std::nullopt;
  // When resumed from another out_dir (restart.resume: PATH), save the checkpoint in this one, too.
  if (std::filesystem::path(resumed_from_).parent_path() != CheckpointsDir(train_.out_dir())) {
    NSA_RETURN_IF_ERROR(Save(/*last=*/true));
  }
  return agreement.stop ? StoppedAfter(step(), agreement) : DataEndedAfter(step());
}

// Main path 5/7: train step.
absl::StatusOr<Trainer::StepResult> Trainer::Step(int64_t step) {
  StepResult result;
  v1::StepRecord& record = result.record;
  record.set_step(step);
  record.set_learning_rate(LearningRate(train_, step));
  const bool learns_answers = LearnsAnswers(spec_.data());
  int64_t answers = 0;
  for (int32_t micro = 0; micro < train_.accumulate_grad_batches(); ++micro) {
    NSA_ASSIGN_OR_RETURN(const Batch batch, NextBatch(micro, &record));
    mix_shares_.Add(batch);
    if (learns_answers) answers += PredictedOf(batch.targets);
    NSA_RETURN_IF_ERROR(executor_->AddMicroBatch(micro, TokensOf(batch), &record));
  }
  if (learns_answers) NSA_RETURN_IF_ERROR(CountAnswers(answers, &record));
  NSA_RETURN_IF_ERROR(executor_->CompleteGradients(&record));
  NSA_ASSIGN_OR_RETURN(result.agreement, Agree(&record));
  NSA_RETURN_IF_ERROR(
      mix_shares_.Finish(executor_->SequenceLosses(), *data_, comm_.get(), &record));
  NSA_RETURN_IF_ERROR(executor_->Update(result.agreement.finite, &record));
  if (result.agreement.finite && AuditsAfter(spec_.nsa(), step)) NSA_RETURN_IF_ERROR(Audit(step));
  if (FlipsBitAfter(step, launch_.rank(), launch_.generation())) {
    NSA_RETURN_IF_ERROR(FlipBit(executor_->exec(), &executor_->state()));
  }
  if (HashesAfter(spec_.guard(), step) || EndsAfter(step, result.agreement)) {
    NSA_RETURN_IF_ERROR(HashParameters(&record));
  }
  executor_->AddStatistics(&record);
  NSA_RETURN_IF_ERROR(ShareLayers(comm_.get(), ContextOf(spec_), &record));
  return result;
}

// With data.loss_on: assistant the loss is the mean over the answers of all ranks, which have
// another number of them each.
absl::Status Trainer::CountAnswers(int64_t mine, v1::StepRecord* record) {
  page_.SetPhase(Phase::kReduce);
  std::array<double, 1> sum = {static_cast<double>(mine)};
  NSA_RETURN_IF_ERROR(comm_->AllReduce("answers", Reduce::kSum, sum));
  record->set_answer_tokens(static_cast<int64_t>(sum[0]));
  return absl::OkStatus();
}

// Whether this step is the last one: all are done, the ranks were asked to stop, or the data has
// ended. A guard that ends the run, which judges the finished record, is not foreseen.
bool Trainer::EndsAfter(int64_t step, const Agreement& agreement) const {
  return step == train_.steps() || agreement.stop || agreement.exhausted;
}

// Writes the hash of the parameters into the record, and compares those of all ranks. Where they
// differ, training goes on: the hashes do not say which rank is wrong, nor since when, so a restart
// could begin with wrong parameters or on the same faulty GPU, and stopping would destroy the
// evidence: a machine still in the faulty state. Instead an event of severity error is sent, once,
// because ranks that differ do so in all later steps.
absl::Status Trainer::HashParameters(v1::StepRecord* record) {
  page_.SetPhase(Phase::kTelemetry);
  NSA_ASSIGN_OR_RETURN(const uint64_t mine, executor_->ParametersHash());
  record->set_parameters_hash(mine);
  if (comm_->world_size() == 1 || parameters_differ_) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const std::vector<uint64_t> hashes, ExchangeHashes(comm_.get(), mine));
  const auto text = DifferenceText(hashes, record->step(), launch_.job_id());
  if (!text.has_value()) return absl::OkStatus();
  parameters_differ_ = true;
  if (launch_.rank() == 0 && reporter_ != nullptr) {
    reporter_->Event(Reason::kParametersDiffer, *text, v1::SEVERITY_ERROR);
  }
  return absl::OkStatus();
}

absl::Status Trainer::Audit(int64_t step) {
  page_.SetPhase(Phase::kTelemetry);
  const absl::Duration begin = options_.clock->Monotonic();
  NSA_RETURN_IF_ERROR(executor_->Audit(step));
  step_began_ += options_.clock->Monotonic() - begin;  // not counted as time of the step
  return absl::OkStatus();
}

absl::StatusOr<Batch> Trainer::NextBatch(int32_t micro_batch, v1::StepRecord* record) {
  page_.SetMicroStep(micro_batch);
  page_.SetPhase(Phase::kData);
  v1::StepTimes& times = *record->mutable_times();
  double seconds = times.data_seconds();
  absl::StatusOr<Batch> batch = Timed(*options_.clock, &seconds, [&] { return data_->Next(); });
  NSA_RETURN_IF_ERROR(batch.status());
  times.set_data_seconds(seconds);
  record->set_data_source(batch->source);
  record->set_data_epoch(batch->epoch);
  if (data_->fell_back()) ++synthetic_batches_;
  return batch;
}

// All ranks exchange their reports and draw the same conclusion from them.
absl::StatusOr<Agreement> Trainer::Agree(v1::StepRecord* record) {
  page_.SetPhase(Phase::kReduce);
  const RankReport mine = {.loss = record->loss(),
                           .finite = !record->skipped_nonfinite(),
                           .stop_after = stop_.stop_after(),
                           .too_slow = guards_->too_slow(),
                           .exhausted = data_->exhausted(),
                           .profile = profiler_.ticket()};
  v1::StepTimes& times = *record->mutable_times();
  double seconds = times.communication_seconds();
  const auto reports =
      Timed(*options_.clock, &seconds, [&] { return Exchange(comm_.get(), mine); });
  NSA_RETURN_IF_ERROR(reports.status());
  const Agreement agreement = Conclude(*reports, record->step());
  if (agreement.profile) profiler_.Agreed();
  record->set_loss(agreement.loss);
  record->set_skipped_nonfinite(!agreement.finite);
  times.set_communication_seconds(seconds);
  return agreement;
}

// Completes and reports the record of a step, and gives it to the guards. Returns how the run ends
// when a guard ends it.
std::optional<Ending> Trainer::Observe(const StepResult& result) {
  page_.SetPhase(Phase::kTelemetry);
  v1::StepRecord record = result.record;
  Complete(&record);
  reporter_->Step(record);
  if (std::string error = reporter_->error(); error != shown_error_) {
    page_.SetTelemetryError(error);
    shown_error_ = std::move(error);
  }
  return guards_->Observe(record, result.agreement, reporter_.get());
}

// Adds the values of the whole step: time, tokens, throughput, the fallback of the data.
void Trainer::Complete(v1::StepRecord* record) {
  const absl::Duration now = options_.clock->Monotonic();
  const double seconds = absl::ToDoubleSeconds(now - step_began_);
  step_began_ = now;
  record->set_tokens(TokensPerStep(spec_));
  state_.set_total_tokens(state_.total_tokens() + record->tokens());
  record->set_total_tokens(state_.total_tokens());
  record->mutable_times()->set_step_seconds(seconds);
  if (seconds > 0) record->set_tokens_per_second(static_cast<double>(record->tokens()) / seconds);
  if (synthetic_batches_ > 0) (*record->mutable_fallbacks())["data_source"] = synthetic_batches_;
}

// Computes and reports the mean loss over the validation batches, and over those of every set of
// data.val. Each rank evaluates its rows.
absl::Status Trainer::Evaluate() {
  const int32_t batches = data_->eval_batches();
  if (batches == 0) return absl::OkStatus();
  page_.SetPhase(Phase::kEval);
  const absl::Duration begin = options_.clock->Monotonic();
  NSA_ASSIGN_OR_RETURN(const std::vector<EvalSum> sums, EvalSums());
  const double loss = sums.front().loss();
  const absl::Duration taken = options_.clock->Monotonic() - begin;
  step_began_ += taken;  // not counted as time of the next step

  v1::EvalRecord record;
  record.set_step(step());
  record.set_loss(loss);
  record.set_tokens(sums.front().predicted);
  record.set_seconds(absl::ToDoubleSeconds(taken));
  for (int32_t set = 0; set < data_->eval_sets(); ++set) {
    v1::NamedLoss* const named = record.add_sets();
    named->set_name(data_->eval_set_name(set));
    named->set_loss(sums[static_cast<size_t>(set) + 1].loss());
    named->set_tokens(sums[static_cast<size_t>(set) + 1].predicted);
  }
  reporter_->Eval(record);
  state_.set_val_loss(loss);
  state_.set_val_step(step());
  if (std::isfinite(loss) && (state_.best_val_step() == 0 || loss < state_.best_val_loss())) {
    state_.set_best_val_loss(loss);
    state_.set_best_val_step(step());
  }
  return absl::OkStatus();
}

// Over all ranks: of the validation set, then of each set of data.val.
absl::StatusOr<std::vector<Trainer::EvalSum>> Trainer::EvalSums() {
  std::vector<EvalSum> mine;
  NSA_ASSIGN_OR_RETURN(mine.emplace_back(),
                       Validate(data_->eval_batches(), [&](int32_t i) { return data_->Eval(i); }));
  for (int32_t set = 0; set < data_->eval_sets(); ++set) {
    NSA_ASSIGN_OR_RETURN(
        mine.emplace_back(),
        Validate(data_->eval_set_batches(set), [&](int32_t i) { return data_->EvalSet(set, i); }));
  }
  executor_->state().model->TakeLayerStats();  // discarded: only those of training are reported
  constexpr size_t kNumbers = 3;
  std::vector<double> numbers;
  for (const EvalSum& sum : mine) {
    numbers.insert(numbers.end(), {sum.mean, static_cast<double>(sum.predicted),
                                   static_cast<double>(sum.positions)});
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm_.get(), "eval", numbers));
  const size_t ranks = all.size() / numbers.size();
  std::vector<EvalSum> sums(mine.size());
  for (size_t i = 0; i < all.size(); i += kNumbers) {
    EvalSum& sum = sums[i / kNumbers % sums.size()];
    sum.mean += all[i] / static_cast<double>(ranks);
    sum.predicted += static_cast<int64_t>(all[i + 1]);
    sum.positions += static_cast<int64_t>(all[i + 2]);
  }
  return sums;
}

// This rank's rows of `batches` batches.
absl::StatusOr<Trainer::EvalSum> Trainer::Validate(int32_t batches, const BatchOf& batch_of) {
  EvalSum sum;
  const int32_t at_once = executor_->eval_batches_at_once();
  for (int32_t begin = 0; begin < batches; begin += at_once) {
    const int32_t count = std::min(at_once, batches - begin);
    page_.SetMicroStep(begin);
    NSA_ASSIGN_OR_RETURN(const EvalSum part, ValidateOn(begin, count, batch_of));
    sum.mean += part.mean * count / batches;
    sum.predicted += part.predicted;
    sum.positions += part.positions;
  }
  return sum;
}

// The same of batches `begin` … `begin` + `count` − 1.
absl::StatusOr<Trainer::EvalSum> Trainer::ValidateOn(int32_t begin, int32_t count,
                                                     const BatchOf& batch_of) {
  std::vector<Batch> batches;
  EvalSum sum;
  for (int32_t i = begin; i < begin + count; ++i) {
    NSA_ASSIGN_OR_RETURN(Batch batch, batch_of(i));
    sum.predicted += PredictedOf(batch.targets);
    sum.positions += std::ssize(batch.targets);
    batches.push_back(std::move(batch));
  }
  std::vector<TokenBatch> tokens(batches.size());
  std::transform(batches.begin(), batches.end(), tokens.begin(), TokensOf);
  NSA_ASSIGN_OR_RETURN(const double loss, executor_->EvalLoss(tokens));
  sum.mean = loss * (static_cast<double>(sum.predicted) / static_cast<double>(sum.positions));
  return sum;
}

// After a validation rank 0 continues the prompts of the job with the weights of this step. The
// other ranks wait for it here, so that no rank counts the time as that of a step.
absl::Status Trainer::WriteSamples() {
  if (spec_.sample().prompts().empty() || data_->eval_batches() == 0) return absl::OkStatus();
  page_.SetPhase(Phase::kEval);
  const absl::Duration begin = options_.clock->Monotonic();
  if (launch_.rank() == 0) ReportSamples();
  NSA_RETURN_IF_ERROR(comm_->Barrier("samples"));
  step_began_ += options_.clock->Monotonic() - begin;
  return absl::OkStatus();
}

// What goes wrong is reported and ends nothing: an event says it once, each record again.
void Trainer::ReportSamples() {
  if (!samples_) {
    samples_.emplace(
        JobSamplesOptions{.spec = &spec_,
                          .parameters = &executor_->state().parameters,
                          .clock = options_.clock,
                          .exec = executor_->exec(),
                          .on_token = [this](int32_t tokens) { page_.SetMicroStep(tokens); }});
  }
  for (const v1::SampleRecord& record : samples_->Write(step())) {
    reporter_->Sample(record);
    if (record.error().empty() || record.error() == sample_error_) continue;
    sample_error_ = record.error();
    reporter_->Event(
        Reason::kSampleFailed,
        absl::StrCat("step ", step(), ": ", sample_error_, "; training continues without the text"),
        v1::SEVERITY_WARNING);
  }
}

absl::Status Trainer::Save(bool last) {
  page_.SetPhase(Phase::kCheckpoint);
  const absl::Duration begin = options_.clock->Monotonic();
  const Snapshot snapshot = TakeSnapshot();
  const absl::Status saved = last ? saver_->SaveLast(snapshot) : saver_->Save(snapshot);
  step_began_ += options_.clock->Monotonic() - begin;  // not counted as time of the next step
  return saved;
}

Snapshot Trainer::TakeSnapshot() {
  const ModelState& trained = executor_->state();
  Snapshot snapshot = {.tensors = {.layout = &layout_,
                                   .parameters = trained.parameters.flat(),
                                   .first_moment = trained.optimizer.first_moment().flat(),
                                   .second_moment = trained.optimizer.second_moment().flat()},
                       .state = state_};
  if (trained.sharded) {
    snapshot.tensors.read = [this](StatePart part, const Slice& wanted, std::span<float> to) {
      // Where all ranks write one checkpoint, each writes the share that it has.
      return executor_->ReadState(part, wanted, /*local=*/out_dir_ranks_.everybody, to);
    };
  }
  snapshot.state.set_format_version(1);
  snapshot.state.set_step(step());
  *snapshot.state.mutable_data() = data_->cursor();
  snapshot.state.set_consecutive_nonfinite(guards_->consecutive_nonfinite());
  RecordChoices(executor_->Choices(), &snapshot.state);
  return snapshot;
}

// Completes the ending of a run that a guard ended because it has diverged. Waits for a checkpoint
// that is still being written, because it may be the one to go on from.
Ending Trainer::WithAdvice(Ending ending) {
  saver_->Drain();
  std::array<double, 1> newest = {0};  // not all machines need to have the folder
  if (const auto checkpoints = ListCheckpoints(train_.out_dir()); checkpoints.ok()) {
    for (const CheckpointEntry& checkpoint : *checkpoints) {
      if (checkpoint.step >= guards_->diverging_since()) break;
      newest[0] = static_cast<double>(checkpoint.step);
    }
  }
  comm_->AllReduce("finish", Reduce::kMax, newest).IgnoreError();
  absl::StrAppend(&ending.text, "; ",
                  DivergenceAdvice(train_, launch_.job_id(), static_cast<int64_t>(newest[0])));
  return ending;
}

// Waits for the last checkpoint, unless the run has failed.
absl::StatusOr<Ending> Trainer::Finish(const Ending& ending) {
  if (ending.reason == Word(Reason::kDiverged)) return WithAdvice(ending);
  if (ending.outcome != v1::OUTCOME_COMPLETED && ending.outcome != v1::OUTCOME_STOPPED) {
    return ending;
  }
  executor_->PrintKernelTimes(step());
  NSA_ASSIGN_OR_RETURN(const std::optional<Ending> failure, saver_->Finish(TakeSnapshot()));
  if (!train_.checkpoint_url().empty()) NSA_RETURN_IF_ERROR(AwaitUpload(ending));
  return failure.value_or(guards_->Judge(ending));
}

// Waits for the last upload: as long as parts arrive, up to an hour. Ranks that were asked to stop
// are killed after ten times the grace.
absl::Status Trainer::AwaitUpload(const Ending& ending) {
  constexpr absl::Duration kLongest = absl::Hours(1), kIdle = absl::Minutes(10);
  const absl::Duration grace = absl::Seconds(spec_.restart().stop_grace_seconds());
  const bool stopped = ending.outcome == v1::OUTCOME_STOPPED;
  Uploader* const uploader = uploader_ ? &*uploader_ : nullptr;
  NSA_RETURN_IF_ERROR(
      saver_->AwaitUpload(uploader, stopped ? std::min(kLongest, 5 * grace) : kLongest, kIdle));
  if (uploader == nullptr || uploader->UpToDate()) return absl::OkStatus();
  reporter_->Event(Reason::kCheckpointUploadFailed,
                   absl::StrCat("the last checkpoint is not at ", train_.checkpoint_url(),
                                " when the run ends; it is in ", train_.out_dir(),
                                ", and the next start of the job uploads it"),
                   v1::SEVERITY_WARNING);
  return absl::OkStatus();
}

// Stops everything that writes, then writes the last record.
void Trainer::Report(const v1::WorkerFinished& record) {
  page_.SetPhase(Phase::kFinished);
  control_.reset();
  // Do not wait for the shard of a lost peer.
  if (checkpoints_ != nullptr && ExitCodeOf(record.outcome()) != 0) {
    checkpoints_->Abandon(record.text());
  }
  checkpoints_.reset();  // reports its last records before the run's
  uploader_.reset();
  // No reporter: the setup failed before the step to resume from was known. The largest step makes
  // the reporter keep all rows of the files.
  if (reporter_ == nullptr) {
    // Only rank 0 knows whether out_dir belongs to this job. Other ranks use their journals only.
    if (launch_.rank() != 0) out_dir_ = Folder();
    absl::Status opened = OpenReporter(std::numeric_limits<int64_t>::max());
    if (!opened.ok()) {  // the files cannot be opened: use the journal only
      out_dir_ = Folder();
      opened = OpenReporter(std::numeric_limits<int64_t>::max());
    }
    if (!opened.ok()) spdlog::error("{}", std::string(opened.message()));
  }
  if (reporter_ != nullptr) reporter_->Finished(record);
}

}  // namespace nsa::train
