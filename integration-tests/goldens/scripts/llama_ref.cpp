// Small driver around llama.cpp's C API; the Python scripts talk to it over pipes and files.
//   llama_ref tokenize MODEL 0|1          stdin: (u32 len, bytes)*   stdout: (u32 n, u32 id * n)*
//   llama_ref logits MODEL IDS OUT f32|f16  IDS: u32 * n             OUT: f32 * n * n_vocab
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

static int tokenize(const char *path, bool parse_special) {
    llama_model_params mp = llama_model_default_params();
    mp.vocab_only = true;
    llama_model *model = llama_model_load_from_file(path, mp);
    if (!model) return 1;
    const llama_vocab *vocab = llama_model_get_vocab(model);
    uint32_t len;
    while (fread(&len, 4, 1, stdin) == 1) {
        std::string text(len, '\0');
        if (len && fread(&text[0], 1, len, stdin) != len) return 1;
        std::vector<llama_token> ids(len + 8);
        int32_t n = llama_tokenize(vocab, text.data(), (int32_t) len, ids.data(), (int32_t) ids.size(),
                                   /*add_special=*/false, parse_special);
        if (n < 0) return 1;
        uint32_t un = (uint32_t) n;
        fwrite(&un, 4, 1, stdout);
        fwrite(ids.data(), 4, un, stdout);
    }
    llama_model_free(model);
    return 0;
}

static int logits(const char *path, const char *ids_path, const char *out_path, bool f16_kv) {
    FILE *f = fopen(ids_path, "rb");
    if (!f) return 1;
    std::vector<llama_token> ids;
    llama_token id;
    while (fread(&id, 4, 1, f) == 1) ids.push_back(id);
    fclose(f);

    llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) return 1;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = (uint32_t) ids.size();
    cp.n_threads = cp.n_threads_batch = 2;
    cp.type_k = cp.type_v = f16_kv ? GGML_TYPE_F16 : GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;

    llama_batch batch = llama_batch_init((int32_t) ids.size(), 0, 1);
    batch.n_tokens = (int32_t) ids.size();
    for (size_t i = 0; i < ids.size(); i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = (llama_pos) i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(ctx, batch) != 0) return 1;
    f = fopen(out_path, "wb");
    if (!f) return 1;
    for (size_t i = 0; i < ids.size(); i++) {
        fwrite(llama_get_logits_ith(ctx, (int32_t) i), 4, (size_t) n_vocab, f);
    }
    fclose(f);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

int main(int argc, char **argv) {
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    if (argc == 4 && !strcmp(argv[1], "tokenize")) return tokenize(argv[2], argv[3][0] == '1');
    if (argc == 6 && !strcmp(argv[1], "logits")) {
        return logits(argv[2], argv[3], argv[4], !strcmp(argv[5], "f16"));
    }
    fprintf(stderr, "usage: see the head of llama_ref.cpp\n");
    return 2;
}
