#include "common/rpc/cordon_text.h"

namespace nsa {

std::string CordonWord(const v1::Node& node) {
  if (!node.has_cordon()) return "";
  if (!node.cordon().drain()) return "CORDONED";
  const bool busy = node.cpu_slots_used() > 0 || node.gpus_used() > 0 || !node.job_ids().empty() ||
                    !node.store_id().empty();
  return busy ? "DRAINING" : "DRAINED";
}

std::string CordonText(const v1::NodeCordon& cordon) {
  std::string text = cordon.drain() ? "drained" : "cordoned";
  if (!cordon.by().empty()) text += " by " + cordon.by();
  if (!cordon.reason().empty()) text += " (" + cordon.reason() + ")";
  return text;
}

}  // namespace nsa
