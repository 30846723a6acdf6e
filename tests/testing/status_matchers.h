// Matchers for absl::Status and absl::StatusOr.
#pragma once

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace nsa {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// EXPECT_THAT(Save(), IsOk());
MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("job.yaml")));
MATCHER_P2(StatusIs, code, message,
           absl::StatusCodeToString(code) + " whose message " +
               ::testing::DescribeMatcher<std::string>(message, negation)) {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         ::testing::Value(std::string(StatusOf(arg).message()), message);
}
inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ::testing::_); }

}  // namespace nsa

#define ASSERT_OK(expression) ASSERT_THAT(expression, ::nsa::IsOk())
#define EXPECT_OK(expression) EXPECT_THAT(expression, ::nsa::IsOk())
