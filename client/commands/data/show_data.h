// What is printed about data. Pure functions.
#pragma once

#include <string>

#include "client/show/table.h"
#include "nsa/v1/data.pb.h"

namespace nsa::client {

// One row for each set.
Table PreparedTable(const v1::PreparedData& prepared);

// Paragraphs, one for each set; texts are cleaned.
std::string InspectionText(const v1::DataInspection& inspection);

}  // namespace nsa::client
