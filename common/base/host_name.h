// The name of this machine, as gethostname(2) returns it; empty if there is none.
#pragma once

#include <string>

namespace nsa {

std::string HostName();

}  // namespace nsa
