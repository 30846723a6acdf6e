// How a worker ends that is refused memory, so that its agent can say so.
#pragma once

namespace nsa {

// The exit code of a process to which the system has refused memory.
inline constexpr int kExitOutOfMemory = 4;

// From now on such a process ends at once with that code and a line on standard error, instead of
// std::bad_alloc in the thread that happened to ask.
void ExitWhenMemoryIsRefused();

}  // namespace nsa
