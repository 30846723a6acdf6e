// What to change in a job that needs too much memory.
#pragma once

#include <cstdint>
#include <string>

#include "common/preflight/rules.h"

namespace nsa {

// Names up to three changes of different settings (of runtime.shard the first level, if need be
// with gradient_checkpointing); each alone makes the job's ranks fit in `memory` bytes: "it fits
// with gradient_checkpointing: true, or batch_size: …". Pure.
std::string WhatWouldFit(const PreflightFacts& facts, int64_t memory);

}  // namespace nsa
