// What is said of a machine on which no rank is placed: `nsactl nodes`, the live page, reasons of
// jobs that wait.
#pragma once

#include <string>

#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// "CORDONED", "DRAINING" while jobs are still placed on it, "DRAINED"; empty for a machine without
// a cordon.
std::string CordonWord(const v1::Node& node);

// "cordoned by alice (new kernel)", "drained by alice".
std::string CordonText(const v1::NodeCordon& cordon);

}  // namespace nsa
