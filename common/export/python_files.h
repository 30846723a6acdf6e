// The Python files of an exported model, as they are beside this header.
#pragma once

#include <string_view>

namespace nsa {

extern const std::string_view kConfigurationPy;  // configuration_nsa.py
extern const std::string_view kModelingPy;       // modeling_nsa.py

}  // namespace nsa
