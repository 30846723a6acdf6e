// The job that a job is compared with: the same model with dense attention.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa::bench {

// The same model with one branch, whose window is `tokens`: the whole sequence.
v1::JobSpec Dense(v1::JobSpec spec, int32_t tokens);

}  // namespace nsa::bench
