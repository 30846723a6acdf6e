#include "server/decide/progress.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "common/estimate/health.h"
#include "common/record/quantities.h"

namespace nsa::server {
namespace {

constexpr double kWeight = 0.05;  // of the newest step

// The number of validations after the steps in (step, last_step].
int64_t EvalsLeft(const v1::TrainSpec& train, int64_t step, int64_t last_step) {
  if (train.eval_every() <= 0 || step >= last_step) return 0;
  // The last step of a run is validated too, whatever eval_every is.
  const bool extra = last_step % train.eval_every() != 0;
  return last_step / train.eval_every() - step / train.eval_every() + (extra ? 1 : 0);
}

void FoldStep(const v1::StepRecord& record, const v1::TrainSpec& train, int64_t last_step,
              v1::JobProgress* progress) {
  if (record.step() > progress->counted_step()) {
    progress->set_counted_step(record.step());
    progress->set_productive_seconds(progress->productive_seconds() +
                                     std::max(record.times().step_seconds(), 0.0));
  }
  progress->set_step(record.step());
  progress->set_loss(record.loss());
  progress->set_total_tokens(record.total_tokens());
  for (const record::Quantity& quantity : record::kQuantities) {
    if (quantity.set_newest != nullptr) quantity.set_newest(progress, quantity.step(record));
  }
  *progress->mutable_gates() = SummaryOfGates(record);
  if (progress->gates().branch_share().empty()) progress->clear_gates();
  progress->set_memory_allocated_bytes(record.memory_allocated_bytes());
  *progress->mutable_fallbacks() = record.fallbacks();
  const double now = record.tokens_per_second();
  if (std::isfinite(now) && now > 0) {
    const double before = progress->tokens_per_second();
    progress->set_tokens_per_second(before > 0 ? before + kWeight * (now - before) : now);
  }
  const double left = static_cast<double>(std::max<int64_t>(last_step - record.step(), 0));
  const double rate = progress->tokens_per_second();
  const double tokens_a_step = static_cast<double>(record.tokens());
  const double evals = static_cast<double>(EvalsLeft(train, record.step(), last_step));
  progress->set_eta_seconds(
      rate > 0 ? left * tokens_a_step / rate + evals * progress->eval_seconds() : -1);
}

void FoldEval(const v1::EvalRecord& record, v1::JobProgress* progress) {
  progress->set_val_loss(record.loss());
  progress->set_val_step(record.step());
  progress->set_eval_seconds(std::max(record.seconds(), 0.0));
  if (record.step() > progress->counted_val_step()) {
    progress->set_counted_val_step(record.step());
    progress->set_productive_seconds(progress->productive_seconds() + progress->eval_seconds());
  }
}

void FoldSource(const v1::SourceShare& share, bool repeated, v1::SourceProgress* source) {
  if (!repeated) source->set_rows(source->rows() + std::max<int64_t>(share.rows(), 0));
  if (share.has_loss()) source->set_loss(share.loss());
  source->set_epoch(share.epoch());
}

// Keeps one entry for each source of the job. After a resume with other sources those are new.
void FoldSources(const v1::StepRecord& record, const v1::DataSpec& data,
                 v1::JobProgress* progress) {
  if (data.mix().empty()) return progress->clear_sources();
  std::map<std::string, v1::SourceProgress> known;
  for (const v1::SourceProgress& source : progress->sources()) known[source.name()] = source;
  const bool repeated = record.step() <= progress->counted_step();
  for (const v1::SourceShare& share : record.sources()) {
    FoldSource(share, repeated, &known[share.name()]);
  }
  progress->clear_sources();
  for (const v1::MixSource& source : data.mix()) {
    v1::SourceProgress* const now = progress->add_sources();
    *now = known[source.name()];
    now->set_name(source.name());
  }
}

void FoldValSets(const v1::EvalRecord& record, const v1::DataSpec& data,
                 v1::JobProgress* progress) {
  progress->clear_val_sets();
  for (const v1::NamedLoss& set : record.sets()) {
    const bool full = progress->val_sets_size() >= data.val_size();
    if (!full && data.val().contains(set.name())) *progress->add_val_sets() = set;
  }
}

}  // namespace

void Fold(const v1::WorkerRecord& record, const v1::TrainSpec& train, int64_t last_step,
          v1::JobProgress* progress) {
  progress->set_total_steps(train.steps());
  switch (record.kind_case()) {
    case v1::WorkerRecord::kStarted:
      // Steps after the checkpoint are repeated.
      progress->set_step(record.started().resumed_step());
      progress->set_eta_seconds(-1);
      progress->set_initialized_from(record.started().initialized_from());
      progress->clear_corpus();
      if (record.started().has_corpus()) *progress->mutable_corpus() = record.started().corpus();
      break;
    case v1::WorkerRecord::kStep:
      FoldStep(record.step(), train, last_step, progress);
      break;
    case v1::WorkerRecord::kEval:
      FoldEval(record.eval(), progress);
      break;
    case v1::WorkerRecord::kCheckpoint:
      progress->set_checkpoint_error(record.checkpoint().error());
      if (!record.checkpoint().error().empty()) break;
      progress->set_checkpoint_step(record.checkpoint().step());
      progress->set_checkpoint_unix_nanos(record.unix_nanos());
      break;
    case v1::WorkerRecord::kUpload:
      progress->set_upload_error(record.upload().error());
      if (!record.upload().error().empty()) break;
      progress->set_uploaded_step(std::max(progress->uploaded_step(), record.upload().step()));
      progress->set_uploaded_unix_nanos(record.unix_nanos());
      break;
    default:
      break;
  }
}

void FoldData(const v1::WorkerRecord& record, const v1::DataSpec& data, v1::JobProgress* progress) {
  if (record.has_step()) FoldSources(record.step(), data, progress);
  if (record.has_eval()) FoldValSets(record.eval(), data, progress);
}

void FoldHealth(const v1::WorkerRecord& record, const v1::JobSpec& spec,
                v1::JobProgress* progress) {
  RememberHealth(record, spec, progress->mutable_health_memory());
  const double loss = record.step().loss();
  if (!record.has_step() || !std::isfinite(loss) || record.step().skipped_nonfinite()) return;
  // Without a mean of this start yet, this step is the first of it.
  const bool first = progress->recent_loss() == 0;
  progress->set_recent_loss(
      RecentMean(progress->recent_loss(), loss, first ? 1 : progress->health_memory().steps()));
}

int64_t LastStep(const v1::JobSpec& spec, const v1::StopRequest& stop) {
  const int64_t steps = spec.train().steps();
  return stop.mode() == v1::STOP_MODE_AT_STEP ? std::min(steps, stop.at_step()) : steps;
}

}  // namespace nsa::server
