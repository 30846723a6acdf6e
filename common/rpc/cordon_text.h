// Describes a machine on which no rank is placed, for `nsactl nodes`, the live page and the reasons
// of jobs that wait.
#pragma once

#include <string>

#include "nsa/v1/node.pb.h"

namespace nsa {

// "CORDONED", "DRAINING" while jobs are still placed on it or ranks of another job store run there,
// "DRAINED"; empty for a machine without a cordon.
std::string CordonWord(const v1::Node& node);

// "cordoned by alice (new kernel)", "drained by alice".
std::string CordonText(const v1::NodeCordon& cordon);

}  // namespace nsa
