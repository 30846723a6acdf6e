#include "server/rpc/call_quota.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::server {
namespace {

thread_local std::shared_ptr<AnswerShare> of_this_call;

}  // namespace

absl::StatusOr<std::shared_ptr<void>> CallQuota::Take(const std::string& caller,
                                                      int64_t bytes) const {
  MutexLock lock(&held_->mutex);
  const auto own = held_->of_caller.find(caller);
  const int64_t already = own == held_->of_caller.end() ? 0 : own->second;
  if (already + bytes > limits_.of_one_caller || held_->all + bytes > limits_.of_all) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limits_.what, ": takes ", bytes, " bytes of memory, beside ", already,
                     " of the caller and ", held_->all, " of all calls in progress (at most ",
                     limits_.of_one_caller, " and ", limits_.of_all, "); ", limits_.advice));
  }
  held_->all += bytes;
  held_->of_caller[caller] += bytes;
  return std::shared_ptr<void>(nullptr, [held = held_, caller, bytes](void*) {
    MutexLock release(&held->mutex);
    held->all -= bytes;
    if ((held->of_caller[caller] -= bytes) == 0) held->of_caller.erase(caller);
  });
}

absl::Status AnswerShare::Hold(size_t bytes) {
  held_.reset();
  NSA_ASSIGN_OR_RETURN(held_, quota_.Take(caller_, least_ + 2 * static_cast<int64_t>(bytes)));
  return absl::OkStatus();
}

std::shared_ptr<AnswerShare> AnswerShare::OfThisCall() { return of_this_call; }

AnswerShare::Scope::Scope(std::shared_ptr<AnswerShare> share) { of_this_call = std::move(share); }
AnswerShare::Scope::~Scope() { of_this_call.reset(); }

}  // namespace nsa::server
