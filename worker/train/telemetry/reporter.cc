#include "worker/train/telemetry/reporter.h"

#include <sys/statvfs.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/run/journal.h"
#include "worker/train/telemetry/buffered_journal.h"
#include "worker/train/telemetry/files.h"
#include "worker/train/telemetry/formats.h"
#include "worker/train/telemetry/record_queue.h"
#include "worker/train/telemetry/write_errors.h"

namespace nsa::train {
namespace {

constexpr size_t kQueueCapacity = 1024;
constexpr size_t kJournalCapacity = 1024;
constexpr absl::Duration kFlushPatience = absl::Seconds(10);

spdlog::level::level_enum LevelOf(const v1::WorkerRecord& record) {
  if (record.has_event() && record.event().severity() == v1::SEVERITY_ERROR)
    return spdlog::level::err;
  const bool warning = (record.has_event() && record.event().severity() == v1::SEVERITY_WARNING) ||
                       !record.checkpoint().error().empty() || !record.upload().error().empty() ||
                       !record.sample().error().empty();
  return warning ? spdlog::level::warn : spdlog::level::info;
}

// E.g. " (0.0 of 1024 MiB free)" if `status` says that the disk is full; otherwise empty.
std::string FreeSpace(const absl::Status& status, const std::filesystem::path& folder) {
  struct statvfs info = {};
  if (!absl::IsResourceExhausted(status) || statvfs(folder.c_str(), &info) != 0) return "";
  const double block = static_cast<double>(info.f_frsize) / (1 << 20);
  return absl::StrFormat(" (%.1f of %.0f MiB free)", static_cast<double>(info.f_bavail) * block,
                         static_cast<double>(info.f_blocks) * block);
}

}  // namespace

class Reporter::Impl {
 public:
  Impl(const ReporterOptions& options, std::unique_ptr<TelemetryFiles> files,
       std::unique_ptr<BufferedJournal> journal)
      : options_(options),
        files_(std::move(files)),
        journal_(std::move(journal)),
        write_errors_(options.restored_after),
        queue_(kQueueCapacity, [this](const v1::WorkerRecord& record) { Write(record); }) {}

  void Report(v1::WorkerRecord record) {
    record.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
    Journal(record);
    const bool taken = queue_.Push(std::move(record));
    RecordResult({.place = "queue", .file = "queue", .what_to_do = "look at the disk of out_dir"},
                 taken || files_ == nullptr
                     ? absl::OkStatus()
                     : absl::UnavailableError(absl::StrFormat(
                           "%s: its disk is slower than training (%d records wait, no more can)",
                           options_.out_dir.path().string(), kQueueCapacity)));
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

  std::string error() const { return write_errors_.text(); }

 private:
  // What a result of a write refers to.
  struct Where {
    std::string place;  // one disk or subsystem, whose failures are reported once
    std::string file;
    std::string subject;           // what the status is about, if its message does not name it
    std::filesystem::path folder;  // its free space is shown when the disk is full
    std::string what_to_do;        // in addition to the text of the status
  };

  void Journal(const v1::WorkerRecord& record) {
    if (journal_ == nullptr) return;
    RecordResult({.place = "journal",
                  .file = "journal",
                  .subject = absl::StrCat("journal in ", options_.journal.parent_path().string()),
                  .folder = options_.journal.parent_path(),
                  .what_to_do = "records wait in memory"},
                 journal_->Append(record));
  }

  // Runs on the queue's thread.
  void Write(const v1::WorkerRecord& record) {
    if (files_ != nullptr) WriteFiles(record);
    Log(record);
    if (write_errors_.CheckRestored(clock_.Monotonic())) ReportRestored();
  }

  void WriteFiles(const v1::WorkerRecord& record) {
    std::vector<TelemetryFiles::Written> written = files_->Write(record);
    const bool sum_up = record.has_eval() || record.has_checkpoint() || record.has_finished();
    if (sum_up || (metrics_failed_ && record.has_step())) {
      written.push_back({"metrics", files_->WriteMetrics(dropped())});
      metrics_failed_ = !written.back().status.ok();
    }
    for (const auto& [file, status] : written) {
      if (!status.ok()) ++refused_;
      RecordResult({.place = "out_dir",
                    .file = file,
                    .folder = options_.out_dir.fixed_path(),
                    .what_to_do = "free space or fix the folder"},
                   status);
    }
    if (sum_up) RecordResult({.place = "exchanged", .file = "exchanged"}, files_->CheckInPlace());
  }

  // Records the result of a write. Reports a new kind of failure as an event, once.
  void RecordResult(const Where& where, const absl::Status& status) {
    if (!write_errors_.Record(where.place, where.file, status, clock_.Monotonic())) return;
    const std::string free = FreeSpace(status, where.folder);
    const std::string what = where.subject.empty()
                                 ? absl::StrCat(status.message(), free)
                                 : absl::StrCat(where.subject, free, ": ", status.message());
    const std::string why =
        absl::StrCat(what, where.what_to_do.empty() ? "" : "; ", where.what_to_do);
    write_errors_.SetText(why);
    ReportEvent(Reason::kTelemetryFailed, absl::StrCat(why, "; training continues"),
                v1::SEVERITY_WARNING);
  }

  void ReportRestored() {
    const int64_t rows = dropped() - reported_dropped_;
    reported_dropped_ += rows;
    const int64_t records = journal_ == nullptr ? 0 : journal_->lost() - reported_lost_;
    reported_lost_ += records;
    ReportEvent(
        Reason::kTelemetryRestored,
        absl::StrFormat("files and journal are written again; %d rows are missing in out_dir, "
                        "%d records in the journal",
                        rows, records),
        v1::SEVERITY_INFO);
  }

  void ReportEvent(Reason reason, const std::string& text, v1::Severity severity) {
    v1::WorkerRecord record;
    v1::WorkerEvent& event = *record.mutable_event();
    event.set_reason(Word(reason));
    event.set_text(text);
    event.set_severity(severity);
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
  const std::unique_ptr<TelemetryFiles> files_;  // used on the queue's thread; null without out_dir
  const std::unique_ptr<BufferedJournal> journal_;  // null without an agent
  const RealClock clock_;
  WriteErrors write_errors_;
  std::atomic<int64_t> refused_{0};
  bool metrics_failed_ = false;   // used on the queue's thread, like the next two
  int64_t reported_dropped_ = 0;  // dropped() at the last TELEMETRY_RESTORED
  int64_t reported_lost_ = 0;
  RecordQueue queue_;  // last: its thread uses the rest
};

Reporter::Reporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reporter::~Reporter() = default;

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Open(const ReporterOptions& options) {
  std::unique_ptr<TelemetryFiles> files;
  if (options.out_dir.valid()) {
    NSA_ASSIGN_OR_RETURN(files, TelemetryFiles::Open(options));
  }
  std::unique_ptr<BufferedJournal> journal;
  if (!options.journal.empty()) {
    NSA_ASSIGN_OR_RETURN(auto writer, JournalWriter::Create(options.journal));
    journal = std::make_unique<BufferedJournal>(std::move(writer), kJournalCapacity);
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

void Reporter::Sample(const v1::SampleRecord& sample) {
  v1::WorkerRecord record;
  *record.mutable_sample() = sample;
  impl_->Report(std::move(record));
}

void Reporter::Checkpoint(const v1::CheckpointRecord& checkpoint) {
  v1::WorkerRecord record;
  *record.mutable_checkpoint() = checkpoint;
  impl_->Report(std::move(record));
}

void Reporter::Upload(const v1::UploadRecord& upload) {
  v1::WorkerRecord record;
  *record.mutable_upload() = upload;
  impl_->Report(std::move(record));
}

void Reporter::Event(const v1::WorkerEvent& event) {
  v1::WorkerRecord record;
  *record.mutable_event() = event;
  impl_->Report(std::move(record));
}

void Reporter::Event(Reason reason, const std::string& text, v1::Severity severity) {
  v1::WorkerEvent event;
  event.set_reason(Word(reason));
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

std::string Reporter::error() const { return impl_->error(); }

}  // namespace nsa::train
