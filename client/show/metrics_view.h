// Step records as tables.
#pragma once

#include <string>

#include "client/show/table.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// A row a step. Columns have fixed widths, so that a table can grow a row at a time.
Table StepTable(bool wide);
void AddStepRow(const v1::WatchRecordsResponse& record, bool wide, Table* table);

// A row a layer of one step: gate, branch shares, selection, and keys read against the formula.
Table LayerTable();
void AddLayerRows(const v1::StepRecord& step, Table* table);

// Validations, checkpoints, events, start and end on one line: "step 300: validation loss 2.2101
// (65,536 tokens, 1.2 s)"; empty for a step record.
std::string RecordLine(const v1::WatchRecordsResponse& record);

}  // namespace nsa::client
