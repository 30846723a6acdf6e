// Work that takes one rank much longer than another, such as reading text, a checkpoint or a store.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

// Does `work` on this rank while each other rank does its own, and returns once all have done it. A
// collective of every rank. No timeout of a collective counts meanwhile: while a rank works,
// another thread takes part in one every 500 ms.
//
// The status page shows the collective only once this rank's work is done. Until then the work
// itself shows progress, or none, so a hang is found on the rank that hangs.
//
// An error of the work is returned at once; the other ranks learn of it when this one ends. If a
// rank ends, `cancelled` becomes true, and the error of the collective is returned after the work.
absl::Status WorkApart(std::string_view name, Comm* comm, std::atomic<bool>* cancelled,
                       const std::function<absl::Status()>& work);

}  // namespace nsa::train
