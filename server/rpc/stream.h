// One server stream. Streams pull: a message is made only when the previous one has been written,
// from the store and from the reader's position. A slow reader therefore costs one message, which
// is counted (call_quota.h), and misses nothing. When there is nothing to send, the stream sleeps
// until the change hub wakes it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/call.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

// Returns what to send next: a message, nothing (wait for a change), or an error that ends the
// stream. EndOfStream() (OutOfRange) is its normal end, which the client sees as OK.
template <typename Response>
using Source = std::function<absl::StatusOr<std::optional<Response>>()>;

// Returns the id of the job that a stream is about; empty: all jobs.
using FindJob = std::function<absl::StatusOr<std::string>()>;

inline absl::Status EndOfStream() { return absl::OutOfRangeError("end"); }

// What a source returns that has looked at much and found nothing: it is called again, after others
// have had their turn.
inline absl::Status NotYet() { return absl::UnknownError("not yet"); }

template <typename Response>
class Stream final : public grpc::ServerWriteReactor<Response> {
 public:
  // Starts a stream over `source`, which runs on the executor, one call at a time. Before its first
  // call `find` runs there: it returns the job whose changes wake the stream (empty: all jobs), or
  // an error, with which the stream ends. The caller was checked before.
  static grpc::ServerWriteReactor<Response>* Start(const CallRules& rules, const char* method,
                                                   ChangeHub* hub, FindJob find,
                                                   Source<Response> source) {
    const std::shared_ptr<Stream> stream = Make(rules, method, std::move(source));
    stream->find_ =
        [hub, find = std::move(find),
         weak = std::weak_ptr<Stream>(stream)]() -> absl::StatusOr<ChangeHub::Subscription> {
      absl::StatusOr<std::string> job_id = find();
      if (!job_id.ok()) return job_id.status();
      // The hub may call once more after the subscription has ended, hence the weak pointer.
      return hub->Subscribe(*job_id, [weak](const std::string&) {
        if (const auto alive = weak.lock()) alive->Wake();
      });
    };
    stream->Wake();
    return stream.get();
  }

  // A stream that ends at once with this error.
  static grpc::ServerWriteReactor<Response>* Refuse(const CallRules& rules, const char* method,
                                                    const absl::Status& why) {
    const std::shared_ptr<Stream> stream = Make(rules, method, nullptr);
    MutexLock lock(&stream->mutex_);
    stream->FinishLocked(why);
    return stream.get();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    message_ = Response();  // gives its memory back
    // When others are faster, nothing is counted until the next message.
    if (answers_ != nullptr) answers_->Hold(0).IgnoreError();
    if (!ok || cancelled_) return FinishLocked(absl::CancelledError("the reader has left"));
    PumpLocked();
  }

  void OnCancel() override {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    // Otherwise the write or pump in progress finishes the stream when it ends.
    if (!writing_ && !pumping_) FinishLocked(absl::CancelledError("the reader has left"));
  }

  void OnDone() override {
    rules_->observe_stream(method_, -1);
    ChangeHub::Subscription ended = std::move(subscription_);
    // Tasks on the executor may keep the stream alive for a moment longer.
    const std::shared_ptr<Stream> last = std::move(self_);
  }

 private:
  Stream(const CallRules& rules, const char* method, Source<Response> source)
      : rules_(&rules),
        method_(method),
        began_(RealClock().Monotonic()),
        answers_(AnswerShare::OfThisCall()),
        source_(std::move(source)) {}

  static std::shared_ptr<Stream> Make(const CallRules& rules, const char* method,
                                      Source<Response> source) {
    auto stream = std::shared_ptr<Stream>(new Stream(rules, method, std::move(source)));
    stream->self_ = stream;
    rules.observe_stream(method, +1);
    return stream;
  }

  void Wake() {
    MutexLock lock(&mutex_);
    woken_ = true;
    PumpLocked();
  }

  void PumpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || pumping_ || finished_) return;
    pumping_ = true;
    rules_->executor.Run([stream = this->self_] { stream->Pump(); });
  }

  void Pump() {
    {
      MutexLock lock(&mutex_);
      woken_ = false;
    }
    absl::StatusOr<std::optional<Response>> next =
        rules_->draining
            ? absl::UnavailableError("the coordinator is shutting down; connect again to continue")
            : Next();
    MutexLock lock(&mutex_);
    pumping_ = false;
    if (finished_) return;
    if (cancelled_) return FinishLocked(absl::CancelledError("the reader has left"));
    if (next.status() == NotYet()) return PumpLocked();
    if (!next.ok()) {
      const bool good = absl::IsOutOfRange(next.status());
      return FinishLocked(good ? absl::OkStatus() : next.status());
    }
    if (next->has_value()) {
      const absl::Status room =
          answers_ == nullptr ? absl::OkStatus() : answers_->Hold((*next)->ByteSizeLong());
      if (!room.ok()) return FinishLocked(room);
      message_ = **std::move(next);
      writing_ = true;
      this->StartWrite(&message_);
    } else if (woken_) {
      // Something changed while the source was running.
      PumpLocked();
    }
  }

  absl::StatusOr<std::optional<Response>> Next() {
    if (find_ != nullptr) {
      absl::StatusOr<ChangeHub::Subscription> found = find_();
      find_ = nullptr;
      if (!found.ok()) return found.status();
      subscription_ = *std::move(found);
    }
    return source_();
  }

  void FinishLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(finished_, true)) return;
    const grpc::Status wire = ToWire(status);
    rules_->observe(method_, wire.error_code(),
                    absl::ToDoubleSeconds(RealClock().Monotonic() - began_),
                    /*stream=*/true);
    this->Finish(wire);
  }

  const CallRules* const rules_;
  const std::string method_;                    // the stream outlives the call that began it
  const absl::Duration began_;                  // RealClock().Monotonic()
  const std::shared_ptr<AnswerShare> answers_;  // null: not counted
  const Source<Response> source_;               // used by Pump() only
  std::function<absl::StatusOr<ChangeHub::Subscription>()> find_;  // until the first pump
  ChangeHub::Subscription subscription_;  // set by the first pump, moved out in OnDone
  std::shared_ptr<Stream> self_;          // from Start() to OnDone(), which gRPC calls once, last
  Mutex mutex_;
  Response message_;  // must not change while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace nsa::server
