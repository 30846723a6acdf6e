// Reads keys of a config.json. Errors are InvalidArgument, `config.json: KEY: VALUE (must be
// WANTED); FIX`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace nsa {

// A JSON object, and what the reader of an error is to do.
struct ConfigKeys {
  const nlohmann::json& json;
  const char* fix = "export the model again";

  // The value of `key`; null if it is missing.
  const nlohmann::json& operator[](const char* key) const;

  // The error for a value of `key` that must be `wanted`: "a whole number from 1 to 16".
  absl::Status Wrong(const char* key, const std::string& wanted) const;

  // A whole number from 1 to `most`.
  absl::Status ReadInt(const char* key, int64_t most, int32_t* value) const;

  // A number above 0, at most `most`.
  absl::Status ReadPositive(const char* key, double most, double* value) const;

  // A number from `least` to `most`.
  absl::Status ReadWithin(const char* key, double least, double most, double* value) const;

  absl::Status ReadBool(const char* key, bool* value) const;
};

// FailedPrecondition, naming the first key, when `config` has another value than `wanted`, which is
// what the job in checkpoint_state.json has. null stands for a key that is missing.
absl::Status CheckKeys(const nlohmann::json& config, const nlohmann::ordered_json& wanted);

}  // namespace nsa
