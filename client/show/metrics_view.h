// Step records as tables, and quantities as text.
#pragma once

#include <string>

#include "client/show/table.h"
#include "common/record/quantities.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// A value as record::View says: "2.3125", "3.00e-04", "12.4k", "1.20 GiB".
std::string QuantityText(const record::Quantity& quantity, double value);

// One row per step, with the quantities that have a short name. Columns have fixed widths, so that
// rows can be printed one at a time.
Table StepTable(bool wide);
void AddStepRow(const v1::WatchRecordsResponse& record, bool wide, Table* table);

// The same for each layer of a step, and keys read next to the formula; "-" for what the layer does
// not have.
Table LayerTable();
void AddLayerRows(const v1::StepRecord& step, Table* table);

// A validation, sample, checkpoint, event, start or end on one line: "step 300: validation
// loss 2.2101 (65,536 tokens, 1.2 s)"; empty for a step record.
std::string RecordLine(const v1::WatchRecordsResponse& record);

}  // namespace nsa::client
