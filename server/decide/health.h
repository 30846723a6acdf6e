// Says in one sentence how a job is: "training, 62 %, ends in 12 min; healthy". Pure.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

enum class HealthLevel {
  kGood,     // it does what it should, or has done it
  kWaiting,  // it neither trains nor has ended
  kWarning,  // somebody should look at it
  kBad,      // it fails or has failed
};

// Texts are human-readable and have no full stop.
struct Health {
  HealthLevel level = HealthLevel::kGood;
  // What it does: "training, 62 %, ends in 12 min", "failed at step 7 of 10".
  std::string state;
  // What is wrong with it, or why it waits or failed; may be empty. With kGood a note.
  std::string why;
  // Both in one sentence.
  std::string words;
};

// "good", "waiting", "warning", "bad".
std::string HealthWord(HealthLevel level);

// `job` has its ranks filled in. `now_unix_nanos` is used for times that are left.
Health HealthOf(const v1::Job& job, int64_t now_unix_nanos);

// "45 s", "12 min", "3 h 20 min", "2 d 4 h".
std::string Span(double seconds);

}  // namespace nsa::server
