// The job files of the Python system: the keys and values of each, in a layout of our own, and the
// run that its trainer made of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace nsa {

struct PythonFile {
  std::string name;  // without .yaml
  std::string text;
  int64_t micro_steps = 0;  // train.steps
  int64_t batch = 0;        // sequences that each rank took in a micro-step of a run on text
  int64_t accumulate = 1;
  int64_t seq_len = 0;

  int64_t TokensPerStep(int64_t ranks) const { return batch * accumulate * seq_len * ranks; }
  int64_t Steps() const { return micro_steps / accumulate; }  // a last incomplete step was dropped

  // Writes the file into `folder`, with `more` at its end.
  std::filesystem::path WriteTo(const std::filesystem::path& folder,
                                const std::string& more = "") const {
    const std::filesystem::path path = folder / (name + ".yaml");
    std::ofstream(path) << text << more;
    return path;
  }
};

// Parts that many of the files have in common.
struct PythonText {
  const std::string m7c =
      "model: {dim: 768, n_layers: 12, n_heads: 12, n_kv_groups: 2, d_k: 64, d_v: 64}\n"
      "nsa: {l: 32, d: 16, l_sel: 64, n_sel: 16, w: 512, phi: avg}\n";
  const std::string small =
      "model: {dim: 256, n_layers: 6, n_heads: 8, n_kv_groups: 2, d_k: 32, d_v: 32}\n"
      "nsa: {l: 16, d: 8, l_sel: 32, n_sel: 8, w: 256, phi: avg}\n";
  const std::string byte = "data: {tokenizer: byte}\n";
  const std::string gpt2 = "data: {tokenizer: gpt2}\n";
  const std::string on_gpu =
      "runtime: {device: cuda, precision: bf16, use_flash: true, use_triton_sel: false,\n"
      "          gradient_checkpointing: true}\n";
  const std::string optimizer =
      "train:\n"
      "  lr: 2.0e-4\n"
      "  lr_schedule: cosine\n"
      "  weight_decay: 0.01\n"
      "  grad_clip: 1.0\n"
      "  seed: 1337\n";
  const std::string long_run =
      "  steps: 50000\n"
      "  warmup_steps: 2000\n"
      "  log_every: 20\n"
      "  eval_every: 1000\n"
      "  save_every: 5000\n";
  const std::string long_gpt2_run =
      "  steps: 200000\n"
      "  warmup_steps: 2000\n"
      "  log_every: 50\n"
      "  eval_every: 2000\n"
      "  save_every: 10000\n"
      "  out_dir: artifacts/m7c_125m\n";
  const std::string smoke =
      "  steps: 200\n"
      "  warmup_steps: 20\n"
      "  log_every: 20\n"
      "  eval_every: 0\n"
      "  save_every: 0\n";
};

// Production runs on one and two A100s.
inline std::vector<PythonFile> A100Runs(const PythonText& t) {
  return {
      {"m7c_125m_1xa100_prod_v1",
       t.m7c +
           "runtime: {device: cuda, precision: bf16, use_flash: true, use_triton_sel: false,\n"
           "          gradient_checkpointing: true, fa2_enabled: false, fa2_min_len_win: -1,\n"
           "          fa2_min_len_cmp: -1, sel_triton_min_L: 4096}\n" +
           t.optimizer + t.long_run +
           "  seq_len: 2048\n"
           "  batch_size: 2\n"
           "  accumulate_grad_batches: 2\n"
           "  out_dir: artifacts/m7c_125m_1xa100_prod\n",
       50000, 2, 2, 2048},
      {"m7c_125m_1xa100_production",
       t.m7c + t.byte + t.on_gpu + t.optimizer + t.long_run +
           "  seq_len: 2048\n"
           "  batch_size: 1\n"
           "  accumulate_grad_batches: 1\n"
           "  out_dir: artifacts/m7c_125m_1xa100_prod\n",
       50000, 1, 1, 2048},
      {"m7c_125m_2xa100_production",
       t.m7c + t.byte + t.on_gpu + t.optimizer + t.long_run +
           "  seq_len: 2048\n"
           "  batch_size: 2\n"
           "  accumulate_grad_batches: 2\n"
           "  out_dir: artifacts/m7c_125m_2xa100_prod\n",
       50000, 2, 2, 2048},
      {"m7c_125m_2xa100_production_tuned",
       t.m7c + t.byte + t.on_gpu + t.optimizer + t.long_run +
           "  seq_len: 2048\n"
           "  batch_size: 4\n"
           "  accumulate_grad_batches: 1\n"
           "  out_dir: artifacts/m7c_125m_2xa100_prod\n",
       50000, 4, 1, 2048},
  };
}

// Runs with the GPT-2 tokenizer for GPUs of three sizes.
inline std::vector<PythonFile> LongRuns(const PythonText& t) {
  return {
      {"m7c_125m_24g",
       t.m7c + t.gpt2 + t.on_gpu + t.optimizer + t.long_gpt2_run +
           "  seq_len: 4096\n"
           "  batch_size: 2\n"
           "  accumulate_grad_batches: 8\n",
       200000, 2, 8, 4096},
      {"m7c_125m_40g",
       t.m7c + t.gpt2 + t.on_gpu + t.optimizer + t.long_gpt2_run +
           "  seq_len: 4096\n"
           "  batch_size: 4\n"
           "  accumulate_grad_batches: 4\n",
       200000, 4, 4, 4096},
      {"m7c_125m_80g",
       t.m7c + t.gpt2 + t.on_gpu + t.optimizer + t.long_gpt2_run +
           "  seq_len: 4096\n"
           "  batch_size: 8\n"
           "  accumulate_grad_batches: 2\n",
       200000, 8, 2, 4096},
  };
}

// Tests of the large model.
inline std::vector<PythonFile> TestRuns(const PythonText& t) {
  return {
      {"m7c_125m_2k_test",
       t.m7c + t.byte + t.on_gpu + t.optimizer +
           "  steps: 100\n  warmup_steps: 10\n  log_every: 5\n  eval_every: 50\n  save_every: 0\n" +
           "  seq_len: 2048\n"
           "  batch_size: 4\n"
           "  accumulate_grad_batches: 1\n"
           "  out_dir: artifacts/m7c_125m_2k_test\n",
       100, 4, 1, 2048},
      {"m7c_125m_2k_test_cpu",
       t.m7c + t.byte +
           "runtime: {device: cpu, precision: fp32, use_flash: false, use_triton_sel: false,\n"
           "          gradient_checkpointing: true}\n" +
           t.optimizer +
           "  steps: 20\n  warmup_steps: 2\n  log_every: 5\n  eval_every: 50\n  save_every: 0\n" +
           "  seq_len: 512\n"
           "  batch_size: 2\n"
           "  accumulate_grad_batches: 1\n"
           "  out_dir: artifacts/m7c_125m_cpu_test\n",
       20, 2, 1, 512},
      {"m7c_125m_fast_log",
       t.m7c + t.gpt2 +
           "runtime: {device: cuda, precision: fp32, use_flash: false, use_triton_sel: false}\n" +
           t.optimizer +
           "  steps: 50000\n  warmup_steps: 2000\n  log_every: 5\n  eval_every: 500\n  save_every: "
           "5000\n" +
           "  seq_len: 1024\n"
           "  batch_size: 1\n"
           "  accumulate_grad_batches: 16\n"
           "  out_dir: artifacts/m7c_125m\n",
       50000, 1, 16, 1024},
  };
}

// Smoke runs of small models.
inline std::vector<PythonFile> SmokeRuns(const PythonText& t) {
  return {
      {"m7c_3090_smoke",
       t.small + t.byte +
           "runtime: {device: cuda, precision: fp16, use_flash: true, use_triton_sel: false,\n"
           "          gradient_checkpointing: false}\n" +
           t.optimizer + t.smoke +
           "  seq_len: 1024\n"
           "  batch_size: 1\n"
           "  accumulate_grad_batches: 8\n"
           "  out_dir: artifacts/3090_smoke\n",
       200, 1, 8, 1024},
      {"m7c_small_smoke",
       t.small + t.byte +
           "runtime: {device: cuda, precision: bf16, use_flash: true, use_triton_sel: false,\n"
           "          gradient_checkpointing: false}\n" +
           t.optimizer + t.smoke +
           "  seq_len: 1024\n"
           "  batch_size: 1\n"
           "  accumulate_grad_batches: 1\n"
           "  out_dir: artifacts/small_smoke\n",
       200, 1, 1, 1024},
      {"train_showcase",
       "model: {dim: 128, n_heads: 8, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
       "nsa: {l: 16, d: 8, l_sel: 32, n_sel: 8, w: 64, phi: avg}\n"
       "runtime: {device: auto, precision: fp32, use_flash: false, use_triton_sel: false}\n"
       "train: {steps: 200, seq_len: 128, batch_size: 8, lr: 3.0e-4, seed: 1337, log_every: 20,\n"
       "        out_dir: artifacts/train_showcase}\n",
       200, 8, 1, 128},
  };
}

// The files that describe a run.
inline std::vector<PythonFile> PythonRuns() {
  const PythonText text;
  std::vector<PythonFile> runs = A100Runs(text);
  for (const auto& more : {LongRuns(text), TestRuns(text), SmokeRuns(text)}) {
    runs.insert(runs.end(), more.begin(), more.end());
  }
  return runs;
}

// The files that the Python trainer could not run on their own.
inline std::vector<PythonFile> PythonParts() {
  return {
      {"base",
       "model: {dim: 2560, n_heads: 64, n_kv_groups: 4, d_k: 192, d_v: 128}\n"
       "nsa: {l: 32, d: 16, l_sel: 64, n_sel: 16, w: 512, phi: avg}\n"
       "runtime: {precision: bf16, use_flash: true, use_triton_sel: false,\n"
       "          compile_cmp_win: false, fa2_min_len_win: -1, fa2_min_len_cmp: -1,\n"
       "          sel_triton_min_L: 4096}\n"
       "train: {lr: 3.0e-4, warmup_steps: 50, max_grad_norm: 1.0}\n"},
      {"profiles_a100",
       "runtime: {use_triton_sel: true, sel_triton_min_L: 2048, fa2_enabled: false,\n"
       "          fa2_min_len_win: -1, fa2_min_len_cmp: -1}\n"},
      {"profiles_sm89",
       "runtime: {use_triton_sel: false, sel_triton_min_L: 4096, fa2_min_len_win: -1,\n"
       "          fa2_min_len_cmp: -1}\n"},
  };
}

}  // namespace nsa
