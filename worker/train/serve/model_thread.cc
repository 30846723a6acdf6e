#include "worker/train/serve/model_thread.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/thread_name.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

absl::Status Ending() {
  return absl::UnavailableError("the server is shutting down; send the request again later");
}

}  // namespace

ModelThread::ModelThread(Engine* engine, int threads)
    : engine_(*engine), thread_([this, threads] { Loop(threads); }) {}

ModelThread::~ModelThread() {
  End();
  thread_.join();
}

absl::Status ModelThread::Add(std::shared_ptr<Call> call) {
  const MutexLock lock(&mutex_);
  if (ending_) return Ending();
  if (waiting_.size() >= kWaitingRequests) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("requests: %d wait for the model (at most %d); send this one again later",
                        waiting_.size(), kWaitingRequests));
  }
  waiting_.push_back(std::move(call));
  changed_.SignalAll();
  return absl::OkStatus();
}

void ModelThread::Leave(const std::shared_ptr<Call>& call) {
  call->Cancel();
  const MutexLock lock(&mutex_);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), call), waiting_.end());
}

size_t ModelThread::waiting() const {
  const MutexLock lock(&mutex_);
  return waiting_.size();
}

void ModelThread::End() {
  const MutexLock lock(&mutex_);
  ending_ = true;
  if (current_ != nullptr) waiting_.push_back(current_);
  for (const std::shared_ptr<Call>& call : waiting_) {
    call->End(Ending());
    call->Cancel();
  }
  waiting_.clear();
  changed_.SignalAll();
}

std::shared_ptr<Call> ModelThread::Next() {
  const MutexLock lock(&mutex_);
  current_ = nullptr;
  while (waiting_.empty() && !ending_) changed_.Wait(&mutex_);
  if (ending_) return nullptr;
  current_ = std::move(waiting_.front());
  waiting_.pop_front();
  return current_;
}

void ModelThread::Loop(int threads) {
  NameThread("model");
  SetThreads(threads, 1);
  while (const std::shared_ptr<Call> call = Next()) Compute(call.get());
}

void ModelThread::Compute(Call* call) {
  absl::StatusOr<Usage> result = engine_.Complete(
      call->task(), {.wanted = [call] { return call->wanted(); },
                     .take = [call](AnswerPiece piece) { call->Put(std::move(piece)); }});
  if (!result.ok() && !absl::IsCancelled(result.status())) {
    spdlog::error("completion: {}", result.status().ToString());
  }
  call->End(std::move(result));
}

}  // namespace nsa::train::serve
