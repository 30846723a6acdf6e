// The limits of what clients of nsa-worker serve may ask for. docs/limits.md lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nsa::train::serve {

// A request.
inline constexpr size_t kBodyBytes = 4 << 20;
inline constexpr int kJsonLevels = 8;
inline constexpr int64_t kJsonValues = 300'000;
inline constexpr int64_t kChoices = 256;  // prompts · n
inline constexpr size_t kStops = 32;
inline constexpr size_t kStopBytes = 1'024;
inline constexpr int32_t kMostLogprobs = 20;
// Tokens of all prompts and choices; with logprobs each counts 1 + logprobs times.
inline constexpr int64_t kTokens = 262'144;

// All requests together.
inline constexpr size_t kWaitingRequests = 64;
inline constexpr size_t kBodiesBytes = 64 << 20;

// Slots that a server has if memory allows and nobody asks for another number.
inline constexpr int32_t kUsualSlots = 8;
// Tokens of prompts that are read between two steps.
inline constexpr int64_t kTokensBetweenSteps = 512;

// A stream whose client has not taken so much waits for it.
inline constexpr size_t kUnsentBytes = 1 << 20;

}  // namespace nsa::train::serve
