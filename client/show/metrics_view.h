// Step records as tables.
#pragma once

#include <string>

#include "client/show/table.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// One row per step. Columns have fixed widths, so that rows can be printed one at a time.
Table StepTable(bool wide);
void AddStepRow(const v1::WatchRecordsResponse& record, bool wide, Table* table);

// One row per layer of a step: gate, branch shares, selection, and keys read next to the formula;
// "-" for a gate or a selection that the model does not have.
Table LayerTable();
void AddLayerRows(const v1::StepRecord& step, Table* table);

// A validation, sample, checkpoint, event, start or end on one line: "step 300: validation
// loss 2.2101 (65,536 tokens, 1.2 s)"; empty for a step record.
std::string RecordLine(const v1::WatchRecordsResponse& record);

}  // namespace nsa::client
