#!/bin/bash
# Written by `keras-vit launch --target=tpu-vm`. Read it, change the lines marked CHANGE, then:
#     bash {{file}} run       # create, setup and train, repeated after each preemption; delete at the end
#     bash {{file}} create    # a single step: create, setup, train, state or delete
# The slice costs money from `create` to `delete`.
set -uo pipefail

zone=us-west4-a   # CHANGE: a zone with {{tpu.name}}; gcloud compute tpus accelerator-types list --zone=ZONE
{{if_volume}}bucket=my-bucket  # CHANGE: the bucket with the run directory, mounted as $parent on the hosts
{{if_volume}}parent={{parent}}
name={{name}}

tpu() { gcloud compute tpus "$@" --zone="$zone" --quiet; }
everywhere() { tpu tpu-vm ssh "$name" --worker=all --command="$1"; }
state() { tpu queued-resources describe "$name" --format="value(state.state)" 2>/dev/null; }
delete() { tpu queued-resources delete "$name" --force; }

create() {
    tpu queued-resources create "$name" --node-id="$name" --accelerator-type={{tpu.name}} \
        --runtime-version={{tpu.generation.runtime}} {{spot}} || return
    until [[ $(state) == ACTIVE ]]; do
        echo "$(date +%T) $name is $(state)"
        [[ $(state) != FAILED ]] || return
        sleep "${WAIT:-30}"
    done
}

setup() { # JAX trains; TensorFlow for the CPU reads the data
    local mount=true
    {{if_volume}}printf -v mount '%q' "$parent"
    {{if_volume}}mount="sudo mkdir -p $mount && sudo chown \$USER $mount && { mountpoint -q $mount ||
    {{if_volume}}    gcsfuse --implicit-dirs $bucket $mount; }"
    {{copy}}
    everywhere "python3 -m venv ~/keras-vit &&
        ~/keras-vit/bin/pip install --quiet 'keras-vision-transformers[{{extras}}]' && $mount"
}

train() { # a run ends after several restarts without a newer checkpoint
    everywhere "export KERAS_VIT_RESTART=${restart-} $(cat <<'COMMAND'
KERAS_BACKEND={{backend}} PATH=~/keras-vit/bin:$PATH
{{if_volume}}export JAX_COMPILATION_CACHE_DIR={{quoted_cache}} # {{docs_cache}}
{{command}}
COMMAND
    )"
}

run() {
    local code restart
    for ((restart = 0; restart <= {{restarts}}; restart++)); do
        [[ $(state) == ACTIVE ]] || create || return
        setup && train
        code=$?
        if ((code == 0)); then
            delete
            return
        elif [[ $(state) != ACTIVE ]]; then # preempted
            delete
        elif ((code != 75 && code != 134)); then # 75: stopped with everything saved; 134: another host was lost
            break
        fi
        echo "Code $code: the training resumes, at most {{restarts}} times."
    done
    echo "Code $code. The slice still exists: look at it, then: bash $0 delete"
    return "$code"
}

case ${1-} in
run | create | setup | train | state | delete) "$1" ;;
*) echo "usage: bash $0 run | create | setup | train | state | delete" && exit 2 ;;
esac
