# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""check_crd.py crd.yaml obj.yaml : strict (unknown keys rejected) CRD structural-schema validation"""
import sys, yaml, copy, jsonschema
crd = yaml.safe_load(open(sys.argv[1])); obj = yaml.safe_load(open(sys.argv[2]))
g, v = obj["apiVersion"].split("/"); assert crd["spec"]["group"] == g and crd["spec"]["names"]["kind"] == obj["kind"], "group/kind"
ver = [x for x in crd["spec"]["versions"] if x["name"] == v]; assert ver, f"version {v} not in {[x['name'] for x in crd['spec']['versions']]}"
def strict(s):
    if isinstance(s, dict):
        if s.get("x-kubernetes-int-or-string"): return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        s = {k: ({p: strict(q) for p, q in x.items()} if k == "properties" else strict(x) if k in ("items", "additionalProperties") else x) for k, x in s.items() if not k.startswith("x-kubernetes") or k.endswith("preserve-unknown-fields")}
        if s.get("nullable") and "type" in s: s["type"] = [s["type"], "null"]
        if "properties" in s and not s.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in s: s["additionalProperties"] = False
    return s
sch = strict(ver[0]["schema"]["openAPIV3Schema"]); sch["properties"]["metadata"] = {"type": "object"}
errs = list(jsonschema.Draft7Validator(sch).iter_errors(obj))
for e in errs: print("ILLEGAL", "/".join(map(str, e.path)), e.message[:160])
sys.exit(1 if errs else print("OK", obj["kind"], v) or 0)
