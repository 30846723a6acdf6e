// How a call runs: the check of the caller, the executor, the metrics. Both services use this.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/rpc.h"
#include "grpcpp/grpcpp.h"
#include "server/act/executor.h"
#include "server/rpc/auth.h"
#include "server/rpc/call_quota.h"
#include "server/rpc/errors.h"
#include "server/rpc/gate/callers.h"

namespace nsa::server {

// What every method needs. Borrowed.
struct CallRules {
  const Auth& auth;
  Executor& executor;
  // True while the coordinator shuts down: streams then end, so that their readers connect again.
  const std::atomic<bool>& draining;
  // Called when a call has ended.
  std::function<void(const std::string& method, grpc::StatusCode code, double seconds, bool stream)>
      observe;
  // Called when a call that changes something has ended; see UnaryCall.
  std::function<void(const v1::AuditEntry& entry)> audit = nullptr;
  // Called when a stream begins (+1) and ends (−1).
  std::function<void(const std::string& method, int change)> observe_stream;
  // What a caller should know about the coordinator, whatever was asked; empty: nothing. It goes
  // with every answer to a unary call, as the trailing metadata kWarningKey.
  std::function<std::string()> warning = nullptr;
};

// One unary call, from its arrival to its end.
class UnaryCall {
 public:
  // A call with a subject (a job, a token, a node) changes something: it is noted in the audit log,
  // whatever its result is.
  UnaryCall(grpc::CallbackServerContext* context, const CallRules& rules, const char* method,
            std::optional<std::string> subject = std::nullopt)
      : context_(context),
        reactor_(context->DefaultReactor()),
        rules_(&rules),
        method_(method),
        subject_(std::move(subject)),
        answer_(AnswerShare::OfThisCall()),
        began_(RealClock().Monotonic()) {}

  template <typename Response>
  using Work = std::function<absl::StatusOr<Response>(const UnaryCall& call)>;

  // Runs `work` on the executor and finishes with its result; ResourceExhausted when its queue is
  // full. The reactor is gRPC's.
  template <typename Response>
  grpc::ServerUnaryReactor* RunOn(Executor& executor, Response* response,
                                  Work<Response> work) const {
    return Begin(
        executor, [response, work = std::move(work)](const UnaryCall& call) -> absl::Status {
          absl::StatusOr<Response> result = work(call);
          if (absl::IsCancelled(result.status()) && call.rules_->draining) {
            result = absl::UnavailableError("the coordinator is shutting down; try again later");
          }
          if (!result.ok()) return result.status();
          NSA_RETURN_IF_ERROR(call.Hold(result->ByteSizeLong()));
          *response = *std::move(result);
          call.Finish(absl::OkStatus());
          return absl::OkStatus();
        });
  }

  // For a call that goes on after `begin`, which runs on the executor: an error of it ends the
  // call, and after OK somebody calls Finish() of the call that it was given, at any time.
  grpc::ServerUnaryReactor* Begin(Executor& executor,
                                  std::function<absl::Status(const UnaryCall& call)> begin) const {
    absl::StatusOr<Caller> caller = rules_->auth.Check(*context_, method_);
    if (!caller.ok()) {
      Finish(caller.status());
      return reactor_;
    }
    UnaryCall known = *this;
    known.caller_ = *std::move(caller);
    // All who come over the unix socket without a secret are one name.
    const std::string whose = known.caller_.local ? "" : known.caller_.name;
    const bool taken = executor.TryRun(
        [call = known, begin = std::move(begin)] {
          // The deadline has passed or the client has disconnected.
          if (call.context_->IsCancelled()) return call.Finish(absl::CancelledError("cancelled"));
          const absl::Status begun = begin(call);
          if (!begun.ok()) call.Finish(begun);
        },
        whose);
    if (!taken) {
      known.Finish(absl::ResourceExhaustedError(absl::StrCat(
          method_, ": too many calls wait for ", executor.name(), " (at most ", executor.limit(),
          ", and ", executor.limit_of_one(), " of one caller); try again later")));
    }
    return reactor_;
  }

  // True when nobody waits for the answer any more (deadline passed, client disconnected) or the
  // coordinator is shutting down: long work may then end early. Once true, it stays true. May be
  // called until Finish().
  bool Abandoned() const { return rules_->draining || context_->IsCancelled(); }

  // To be called before an answer of so many bytes is made of `response`, once. ResourceExhausted
  // when too many answers of the caller are not read yet. Called by RunOn().
  absl::Status Hold(size_t bytes) const {
    return answer_ == nullptr ? absl::OkStatus() : answer_->Hold(bytes);
  }

  // Ends the call. Called by RunOn(); other users call it exactly once.
  void Finish(const absl::Status& status) const {
    const grpc::Status wire = ToWire(status);
    rules_->observe(method_, wire.error_code(),
                    absl::ToDoubleSeconds(RealClock().Monotonic() - began_),
                    /*stream=*/false);
    if (subject_.has_value() && rules_->audit) {
      v1::AuditEntry entry;
      entry.set_who(caller_.name);
      entry.set_from(origin());
      entry.set_what(method_);
      entry.set_subject(*subject_);
      entry.set_result(absl::StatusCodeToString(status.code()));
      rules_->audit(entry);
    }
    if (rules_->warning) {
      const std::string warning = rules_->warning();
      if (!warning.empty()) context_->AddTrailingMetadata(kWarningKey, warning);
    }
    reactor_->Finish(wire);
  }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  // Who calls, in the call that work is given.
  const Caller& caller() const { return caller_; }
  // From where; until Finish().
  std::string origin() const { return OriginOf(*context_); }

 private:
  grpc::CallbackServerContext* context_;
  grpc::ServerUnaryReactor* reactor_;
  const CallRules* rules_;
  const char* method_;
  std::optional<std::string> subject_;
  std::shared_ptr<AnswerShare> answer_;  // null: not counted
  Caller caller_;                        // empty until it is known
  absl::Duration began_;                 // RealClock().Monotonic()
};

}  // namespace nsa::server
