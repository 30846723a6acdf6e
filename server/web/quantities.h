// The table of quantities (common/record/quantities.h) as the page reads it: what each is called,
// how its values are written and how its chart or its map is drawn. The page has no such lists.
#pragma once

#include "server/web/json.h"

namespace nsa::server {

// {"quantities": [{name, kind, label, note, …}]}: those with a label, in the order of the table.
// `kind`: step, layer, gpu or validation. `format`: number, rate, count, percent, seconds, bytes or
// word, with `digits` decimals. `curve`: it is in the reply to curves, layers or gpus. `chart`: its
// place among the charts that are shown unasked, from 1; 0: not among them. `member`: which of its
// family it is, for example a phase of the step; empty if it has none to itself. The rest are the
// members of record::View.
Json QuantitiesJson();

}  // namespace nsa::server
