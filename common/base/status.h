// Two macros that return errors to the caller, Annotate() and WithMessage(). The macros resemble
// those of newer Abseil versions, which will replace this file.
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace nsa {

// The same error, with its code and payloads (e.g. its reason), but another message. OK stays OK.
inline absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status result(status.code(), absl::string_view(message.data(), message.size()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

// Puts `context: ` in front of the message of an error; OK stays OK. Each layer adds what it knows,
// once.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(absl::string_view(context.data(), context.size()), ": ",
                                          status.message()));
}

}  // namespace nsa

#define NSA_STATUS_CONCAT_INNER_(a, b) a##b
#define NSA_STATUS_CONCAT_(a, b) NSA_STATUS_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expr`, a Status, is an error.
#define NSA_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                              \
    if (::absl::Status nsa_status_ = (expr); !nsa_status_.ok()) return nsa_status_; \
  } while (false)

// `NSA_ASSIGN_OR_RETURN(const T value, expr);` where expr is a StatusOr<T>.
#define NSA_ASSIGN_OR_RETURN(lhs, expr) \
  NSA_ASSIGN_OR_RETURN_IMPL_(NSA_STATUS_CONCAT_(nsa_statusor_, __LINE__), lhs, expr)
#define NSA_ASSIGN_OR_RETURN_IMPL_(temporary, lhs, expr) \
  auto temporary = (expr);                               \
  if (!temporary.ok()) return temporary.status();        \
  lhs = *std::move(temporary)
