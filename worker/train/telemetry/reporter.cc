#include "worker/train/telemetry/reporter.h"

#include <atomic>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/journal.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/train/telemetry/files.h"
#include "worker/train/telemetry/formats.h"
#include "worker/train/telemetry/record_queue.h"

namespace nsa {
namespace {

constexpr size_t kQueueCapacity = 1024;
constexpr absl::Duration kFlushPatience = absl::Seconds(10);

spdlog::level::level_enum LevelOf(const v1::WorkerRecord& record) {
  if (record.has_event() && record.event().severity() == v1::SEVERITY_ERROR)
    return spdlog::level::err;
  const bool warning = (record.has_event() && record.event().severity() == v1::SEVERITY_WARNING) ||
                       !record.checkpoint().error().empty();
  return warning ? spdlog::level::warn : spdlog::level::info;
}

}  // namespace

class Reporter::Impl {
 public:
  Impl(const ReporterOptions& options, std::unique_ptr<TelemetryFiles> files,
       std::unique_ptr<JournalWriter> journal)
      : options_(options),
        files_(std::move(files)),
        journal_(std::move(journal)),
        queue_(kQueueCapacity, [this](const v1::WorkerRecord& record) { Write(record); }) {}

  void Report(v1::WorkerRecord record) {
    record.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
    Journal(record);
    queue_.Push(std::move(record));
  }

  void Finished(v1::WorkerRecord record) {
    record.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
    queue_.Push(record);
    Flush();
    Journal(record);
  }

  void Flush() {
    if (!queue_.Flush(kFlushPatience)) {
      spdlog::warn("telemetry: the files of out_dir lag behind");
    }
  }

  int64_t dropped() const { return queue_.dropped() + refused_; }

 private:
  void Journal(const v1::WorkerRecord& record) {
    if (journal_ == nullptr) return;
    const absl::Status status = journal_->Append(record);
    if (!status.ok() && !journal_failed_.exchange(true)) {
      spdlog::error("journal: {}", std::string(status.message()));
    }
  }

  // On the queue's thread.
  void Write(const v1::WorkerRecord& record) {
    if (files_ != nullptr) WriteFiles(record);
    Log(record);
  }

  void WriteFiles(const v1::WorkerRecord& record) {
    TelemetryFiles::Refused refused = files_->Write(record);
    if (record.has_eval() || record.has_checkpoint() || record.has_finished()) {
      refused.Add(files_->WriteMetrics(dropped()));
      Tell(files_->CheckInPlace(), "");
    }
    refused_ += refused.files;
    Tell(refused.why, "; free space or fix the folder");
  }

  // As an event, once.
  void Tell(const absl::Status& status, std::string_view what_to_do) {
    if (status.ok() || !told_.insert(std::string(status.message())).second) return;
    v1::WorkerRecord record;
    v1::WorkerEvent& event = *record.mutable_event();
    event.set_reason("TELEMETRY_FAILED");
    event.set_text(absl::StrCat(status.message(),
                                absl::string_view(what_to_do.data(), what_to_do.size()),
                                "; training continues"));
    event.set_severity(v1::SEVERITY_WARNING);
    Report(std::move(record));
  }

  void Log(const v1::WorkerRecord& record) const {
    const v1::TrainSpec& train = options_.spec.train();
    const bool quiet_step = record.has_step() && train.log_every() > 1 &&
                            record.step().step() % train.log_every() != 0 &&
                            record.step().step() - 1 != options_.resumed_step &&
                            record.step().step() != train.steps();
    const bool mine = options_.rank == 0 || record.has_event() || record.has_finished();
    if (quiet_step || !mine) return;
    const std::string line = LogLine(record, train.steps());
    if (!line.empty()) spdlog::log(LevelOf(record), "{}", line);
  }

  const ReporterOptions options_;
  const std::unique_ptr<TelemetryFiles> files_;  // the queue's thread; null without out_dir
  const std::unique_ptr<JournalWriter> journal_;
  std::atomic<int64_t> refused_{0};
  std::atomic<bool> journal_failed_{false};
  std::set<std::string> told_;  // the queue's thread
  RecordQueue queue_;           // last: its thread uses the rest
};

Reporter::Reporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reporter::~Reporter() = default;

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Open(const ReporterOptions& options) {
  std::unique_ptr<TelemetryFiles> files;
  if (options.out_dir.valid()) {
    NSA_ASSIGN_OR_RETURN(files, TelemetryFiles::Open(options));
  }
  std::unique_ptr<JournalWriter> journal;
  if (!options.journal.empty()) {
    NSA_ASSIGN_OR_RETURN(journal, JournalWriter::Create(options.journal));
  }
  return std::unique_ptr<Reporter>(
      new Reporter(std::make_unique<Impl>(options, std::move(files), std::move(journal))));
}

void Reporter::Started(const v1::WorkerStarted& started) {
  v1::WorkerRecord record;
  *record.mutable_started() = started;
  impl_->Report(std::move(record));
}

void Reporter::Step(const v1::StepRecord& step) {
  v1::WorkerRecord record;
  *record.mutable_step() = step;
  impl_->Report(std::move(record));
}

void Reporter::Eval(const v1::EvalRecord& eval) {
  v1::WorkerRecord record;
  *record.mutable_eval() = eval;
  impl_->Report(std::move(record));
}

void Reporter::Checkpoint(const v1::CheckpointRecord& checkpoint) {
  v1::WorkerRecord record;
  *record.mutable_checkpoint() = checkpoint;
  impl_->Report(std::move(record));
}

void Reporter::Event(const v1::WorkerEvent& event) {
  v1::WorkerRecord record;
  *record.mutable_event() = event;
  impl_->Report(std::move(record));
}

void Reporter::Event(const std::string& reason, const std::string& text, v1::Severity severity) {
  v1::WorkerEvent event;
  event.set_reason(reason);
  event.set_text(text);
  event.set_severity(severity);
  Event(event);
}

void Reporter::Finished(const v1::WorkerFinished& finished) {
  v1::WorkerRecord record;
  *record.mutable_finished() = finished;
  impl_->Finished(std::move(record));
}

void Reporter::Flush() { impl_->Flush(); }

int64_t Reporter::dropped() const { return impl_->dropped(); }

}  // namespace nsa
